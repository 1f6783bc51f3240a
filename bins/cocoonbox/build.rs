//! Links this program to run where it was linked for. As a position independent one its loader writes 60,000 addresses
//! into 370 pages of it at each start, which is 3 ms of the 6 that a command takes before it does anything. Its stack,
//! heap and libraries lie at random addresses all the same; `cocoonbox-api` and `cocoonbox-sandboxd`, which only serve,
//! lie so as a whole.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
