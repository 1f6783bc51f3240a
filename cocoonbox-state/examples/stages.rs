//! Measures each step of a save by itself, on one thread and one tree: what the machine could do at most. `bench-state`
//! runs it. It skips looking chunks up, manifests and holes.
//!
//! ```text
//! cargo run --release -p cocoonbox-state --example stages -- TREE SCRATCH
//! ```

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use cocoonbox_seal::{Key, NONCE_LENGTH, seal};
use fastcdc::v2020::FastCDC;

/// As the format cuts, see the crate's README.
const SMALL_FILE: usize = 512 << 10;
const GROUP: usize = 1 << 20;
const CUTS: (usize, usize, usize) = (256 << 10, 1 << 20, 4 << 20);
const PACK: usize = 16 << 20;
/// How much of the tree the steps after reading are measured on.
const SAMPLE: u64 = 512 << 20;

fn files(folder: &Path, found: &mut Vec<(PathBuf, u64)>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files(&entry.path(), found)?;
        } else if kind.is_file() {
            found.push((entry.path(), entry.metadata()?.len()));
        }
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the figures are what this program is for")]
fn figure(name: &str, amount: f64, began: Instant, unit: &str) {
    let rate = amount / began.elapsed().as_secs_f64();
    println!(
        r#"{{"figure":"stage-{name}","ours":{rate:.0},"peer_name":null,"peer":null,"ratio":null,"unit":"{unit}"}}"#
    );
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(tree), Some(scratch)) = (arguments.next(), arguments.next()) else {
        return Err("stages TREE SCRATCH".into());
    };
    let began = Instant::now();
    let mut all = Vec::new();
    files(&tree, &mut all)?;
    figure("scan", all.len() as f64, began, "files/s");

    // every so many files, so that the sample is like the tree
    let total: u64 = all.iter().map(|file| file.1).sum();
    let every = (total / SAMPLE).max(1) as usize;
    let mut sample: Vec<Vec<u8>> = Vec::new();
    let mut read = 0;
    let began = Instant::now();
    let mut buffer = Vec::new();
    for (path, length) in &all {
        buffer.clear();
        buffer.reserve(*length as usize);
        read += File::open(path)?.read_to_end(&mut buffer)?;
    }
    figure("read", mib(read), began, "MiB/s");
    for (path, _) in all.iter().step_by(every) {
        sample.push(fs::read(path)?);
    }

    let began = Instant::now();
    let (mut chunks, mut cut) = (Vec::<&[u8]>::new(), 0);
    for file in &sample {
        if file.len() <= SMALL_FILE {
            chunks.push(file);
        } else {
            cut += file.len();
            let cuts = FastCDC::new(file, CUTS.0, CUTS.1, CUTS.2);
            chunks.extend(cuts.map(|chunk| &file[chunk.offset..chunk.offset + chunk.length]));
        }
    }
    figure("chunk", mib(cut), began, "MiB/s");

    let bytes: usize = sample.iter().map(Vec::len).sum();
    let began = Instant::now();
    let mut ids = 0_u8;
    for chunk in &chunks {
        ids ^= blake3::keyed_hash(&[7; 32], chunk).as_bytes()[0];
    }
    std::hint::black_box(ids);
    figure("hash", mib(bytes), began, "MiB/s");

    let mut groups: Vec<Vec<u8>> = vec![Vec::new()];
    for chunk in &chunks {
        if groups.last().is_some_and(|group| !group.is_empty() && group.len() + chunk.len() > GROUP) {
            groups.push(Vec::new());
        }
        groups.last_mut().ok_or("no group")?.extend_from_slice(chunk);
    }
    let began = Instant::now();
    let mut compressor = zstd::bulk::Compressor::new(1)?;
    let mut stored = Vec::new();
    for group in &groups {
        stored.push(compressor.compress(group)?);
    }
    figure("zstd", mib(bytes), began, "MiB/s");
    let began = Instant::now();
    let mut unpacker = zstd::bulk::Decompressor::new()?;
    let mut plain = Vec::with_capacity(CUTS.2);
    for (group, stored) in groups.iter().zip(&stored) {
        plain.clear();
        plain.reserve(group.len());
        unpacker.decompress_to_buffer(stored, &mut plain)?;
    }
    figure("unzstd", mib(bytes), began, "MiB/s");

    let packed: usize = stored.iter().map(Vec::len).sum();
    let (key, mut pack) = (Key::new([7; 32]), Vec::with_capacity(PACK));
    let began = Instant::now();
    for group in &stored {
        if pack.len() + group.len() + 16 > PACK {
            pack.clear();
        }
        let from = pack.len();
        pack.extend_from_slice(group);
        seal(&key, &[0; NONCE_LENGTH], b"stage", &mut pack, from)?;
    }
    figure("seal", mib(packed), began, "MiB/s");

    let folder = scratch.join(format!("stages-{}", std::process::id()));
    fs::create_dir(&folder)?;
    pack.resize(PACK, 1);
    let packs = packed.div_ceil(PACK);
    let began = Instant::now();
    for number in 0..packs {
        let mut file = File::create_new(folder.join(format!("pack-{number}")))?;
        file.write_all(&pack)?;
        file.sync_data()?;
    }
    figure("write", mib(packs * PACK), began, "MiB/s");
    let began = Instant::now();
    for (number, file) in sample.iter().enumerate() {
        if number % 200 == 0 {
            fs::create_dir(folder.join(format!("files-{}", number / 200)))?;
        }
        File::create_new(folder.join(format!("files-{}/{number}", number / 200)))?.write_all(file)?;
    }
    figure("create", sample.len() as f64, began, "files/s");
    fs::remove_dir_all(folder)?;
    Ok(())
}
