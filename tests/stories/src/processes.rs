use std::fs;

/// A process of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id here.
    pub id: i32,
    /// Its command line, words separated by spaces.
    pub command_line: String,
    /// Its network namespace, where it may be read.
    pub network: Option<String>,
}

/// Returns every process that this account may look at and that is not a zombie.
pub fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let folder = entry.ok()?.path();
            let id = folder.file_name()?.to_str()?.parse().ok()?;
            let status = fs::read_to_string(folder.join("status")).ok()?;
            if status.lines().any(|line| line.starts_with("State:\tZ")) {
                return None;
            }
            let words = fs::read(folder.join("cmdline")).ok()?;
            let command_line = String::from_utf8_lossy(&words).replace('\0', " ");
            let network =
                fs::read_link(folder.join("ns/net")).ok().map(|link| link.to_string_lossy().into_owned());
            Some(Process { id, command_line, network })
        })
        .collect()
}

/// Returns the processes in the network namespace `network`, which a box tells of itself.
pub fn processes_in_network(network: &str) -> Vec<Process> {
    processes().into_iter().filter(|process| process.network.as_deref() == Some(network)).collect()
}
