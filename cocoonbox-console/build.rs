//! Writes the table of the built pages: every file of `web/dist`, or nothing where they were not built. What the pages'
//! build compressed lies beside the file as `NAME.gz`.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> Result<(), Box<dyn Error>> {
    let built = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("web/dist");
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    if built.is_dir() {
        // a path that is not there would make every build a new one; so the pages' build touches this file instead
        println!("cargo::rerun-if-changed=web/dist");
        walk(&built, &mut files)?;
    }
    files.sort();

    let mut table = String::from("&[\n");
    for file in files.iter().filter(|file| file.extension().is_none_or(|extension| extension != "gz")) {
        let name = file.strip_prefix(&built)?.to_str().ok_or("a page's file has no name in UTF-8")?;
        let path = file.to_str().ok_or("the folder of the pages has no name in UTF-8")?;
        let compressed = format!("{path}.gz");
        let gzip = if Path::new(&compressed).is_file() {
            format!("Some(include_bytes!({compressed:?}))")
        } else {
            "None".to_owned()
        };
        writeln!(table, "    Asset {{ name: {name:?}, bytes: include_bytes!({path:?}), gzip: {gzip} }},")?;
    }
    table.push_str("]\n");
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("assets.rs"), table)?;
    Ok(())
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
