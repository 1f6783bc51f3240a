//! Archives that lead out of the folder they are unpacked into: `outside`, two folders up from `loot`, is what they are
//! after.

use std::io::Write as _;

const FILE: u8 = b'0';
const HARD_LINK: u8 = b'1';
const LINK: u8 = b'2';
const DEVICE: u8 = b'3';
const FOLDER: u8 = b'5';
const PIPE: u8 = b'6';
const LONG_NAME: u8 = b'L';

/// Writes the archive that is asked for to standard output.
pub(crate) fn print(arguments: &[&str]) -> ! {
    let written = std::io::stdout().write_all(&of(arguments.first().copied().unwrap_or_default()));
    std::process::exit(i32::from(written.is_err()));
}

/// Returns the archive called `name`.
pub(crate) fn of(name: &str) -> Vec<u8> {
    let folder = entry(FOLDER, "loot/", "", b"", 0o755);
    let link = |at: &str| entry(LINK, at, "../../outside", b"", 0o777);
    let planted = |at: &str| entry(FILE, at, "", b"planted", 0o644);
    let parts = match name {
        // through a link of its own making
        "link" => vec![folder, link("loot/out"), planted("loot/out/planted")],
        // by its name alone
        "parent" => vec![folder, planted("loot/../../outside/planted")],
        "absolute" => vec![folder, planted("/proc/self/cwd/../outside/planted")],
        // a second name for a file outside, which is then written to
        "hard" => {
            let second = entry(HARD_LINK, "loot/second", "loot/out/kept", b"", 0o644);
            vec![folder, link("loot/out"), second, planted("loot/second")]
        }
        "hard-parent" => {
            let second = entry(HARD_LINK, "loot/second", "loot/../../outside/kept", b"", 0o644);
            vec![folder, second, planted("loot/second")]
        }
        // a folder that becomes a link when nobody looks again
        "swap" => {
            let was = entry(FOLDER, "loot/out/", "", b"", 0o755);
            let first = planted("loot/out/first");
            vec![folder, was, first, link("loot/out"), planted("loot/out/planted")]
        }
        // the folder that everything goes into is one itself
        "root" => vec![entry(LINK, "loot", "../outside", b"", 0o777), planted("loot/planted")],
        "other" => vec![folder, planted("other/planted")],
        "mode" => vec![folder, entry(FILE, "loot/mode", "", b"#!/bin/sh\n", 0o6777)],
        "kinds" => {
            let device = entry(DEVICE, "loot/device", "", b"", 0o666);
            vec![folder, device, entry(PIPE, "loot/pipe", "", b"", 0o666), planted("loot/plain")]
        }
        "long" => {
            vec![folder, entry(LONG_NAME, "././@LongLink", "", &vec![b'n'; 1 << 20], 0o644), planted("x")]
        }
        "size" => {
            // a size of 8 GiB less a byte, and nothing behind it
            let mut header = planted("loot/size");
            header.truncate(512);
            header[124..136].copy_from_slice(b"77777777777\0");
            vec![folder, sealed(header)]
        }
        _ => vec![vec![0xa5; 2048]],
    };
    let mut bytes = parts.concat();
    bytes.extend_from_slice(&[0; 1024]);
    bytes
}

fn entry(kind: u8, name: &str, link: &str, data: &[u8], mode: u32) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut set = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    set(0, name);
    set(100, &format!("{mode:07o}"));
    set(108, "0001750");
    set(116, "0001750");
    set(124, &format!("{:011o}", data.len()));
    set(136, "07346545000");
    set(157, link);
    set(257, "ustar");
    set(263, "00");
    set(329, "0000001");
    set(337, "0000011");
    header[156] = kind;
    let mut bytes = sealed(header);
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// A header with the sum that proves it.
fn sealed(mut header: Vec<u8>) -> Vec<u8> {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}
