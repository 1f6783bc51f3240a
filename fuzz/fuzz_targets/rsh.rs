//! The words of `rsh`, ssh's grammar: any words are something to run or an error.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use cocoonbox_client::cli::{RshArgs, RshCommand};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let words: Vec<_> = bytes.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
    for read in [RshArgs::parse(&words), RshArgs::parse_as_ssh(&words)] {
        let Ok(args) = read else { continue };
        if let RshCommand::Argv(argv) = &args.command {
            assert!(!argv.is_empty(), "there is something to run");
        }
        assert!(args.set_env.iter().all(|(name, _)| !name.is_empty() && !name.contains(['=', '\0'])));
    }
});
