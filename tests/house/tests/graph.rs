//! The edges between our crates: listed, and one way.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::Command;
use std::{env, io};

use cocoonbox_house_tests::{compare_with_list, root};
use serde_json::Value;

/// The levels of the graph; an edge leads to a strictly lower one.
const LEVELS: &[(&str, u32)] = &[
    ("cocoonbox-core", 0),
    ("cocoonbox-console", 1),
    ("cocoonbox-seal", 1),
    ("cocoonbox-wire", 1),
    ("cocoonbox-db", 1),
    ("cocoonbox-oauth", 2),
    ("cocoonbox-state", 2),
    ("cocoonbox-boxes", 3),
    ("cocoonbox-sandbox", 3),
    ("cocoonbox-guest", 3),
    ("cocoonbox-client", 3),
    // the assembly that `cocoonbox up` and `cocoonbox-api` share
    ("cocoonbox-server", 4),
    // the stories' server and command line, which the fault tests drive, too
    ("cocoonbox-stories", 5),
];

/// The most packages that the lock file may name; raising it says in the commit what was gained.
const PACKAGE_CEILING: usize = 505;

struct Edge {
    from: String,
    to: String,
    kind: &'static str,
}

fn metadata() -> Result<Value, Box<dyn Error>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns every edge between members of the workspace, sorted, as `from -> to`, with `(dev)` or `(build)` behind.
fn edges() -> Result<Vec<Edge>, Box<dyn Error>> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let ours: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut edges = Vec::new();
    for package in packages {
        for dependency in package["dependencies"].as_array().ok_or("no dependencies")? {
            let (Some(from), Some(to)) = (package["name"].as_str(), dependency["name"].as_str()) else {
                return Err("a package without a name".into());
            };
            if ours.contains(&to) {
                let kind = match dependency["kind"].as_str() {
                    None => "",
                    Some("dev") => " (dev)",
                    Some(_) => " (build)",
                };
                edges.push(Edge { from: from.to_owned(), to: to.to_owned(), kind });
            }
        }
    }
    Ok(edges)
}

#[test]
fn the_edges_between_our_crates_are_the_listed_ones() -> Result<(), Box<dyn Error>> {
    let mut found: Vec<String> =
        edges()?.iter().map(|edge| format!("{} -> {}{}", edge.from, edge.to, edge.kind)).collect();
    found.sort();
    found.dedup();
    compare_with_list(&root().join("tests/house/edges.txt"), &found, "make edges");
    Ok(())
}

#[test]
fn libraries_depend_on_lower_levels_alone() -> Result<(), Box<dyn Error>> {
    let levels: BTreeMap<&str, u32> = LEVELS.iter().copied().collect();
    for Edge { from, to, kind } in edges()? {
        let Some(below) = levels.get(to.as_str()) else {
            panic!("{from} depends on {to}, which is no library of the graph; a new crate gets a level here");
        };
        // a crate's tests may use its own test kit, and stand above the whole library they try
        let tests_itself = from == to && kind == " (dev)";
        if let Some(above) = levels.get(from.as_str()) {
            assert!(above > below || tests_itself, "{from} -> {to}{kind} does not lead downward");
        }
    }
    Ok(())
}

#[test]
fn every_library_crate_has_a_level() -> Result<(), Box<dyn Error>> {
    for folder in cocoonbox_house_tests::library_crates()? {
        let name = folder.file_name().ok_or("a crate without a name")?.to_string_lossy().into_owned();
        assert!(
            LEVELS.iter().any(|(known, _)| *known == name),
            "{name} has no level in tests/house/tests/graph.rs"
        );
    }
    Ok(())
}

#[test]
fn the_number_of_packages_stays_under_its_ceiling() -> io::Result<()> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock"))?;
    let count = lock.lines().filter(|line| *line == "[[package]]").count();
    assert!(count > 50, "Cargo.lock was not understood");
    assert!(count <= PACKAGE_CEILING, "{count} packages are over the ceiling of {PACKAGE_CEILING}");
    Ok(())
}
