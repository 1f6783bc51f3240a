//! Tries to leave a box: one way out a call.
//!
//! Ends with 0 when it got out and says what it got, with 1 when it was stopped and says by what, with 2 when it
//! could not even try. As `AGENT init` it is a guest's first process that lies to its node (`hostile`).

#![expect(unsafe_code, reason = "what it tries has no safe form")]
#![expect(clippy::print_stdout, clippy::exit, reason = "a program that is asked and answers")]

mod account;
mod archive;
mod file;
mod hostile;
mod kernel;
mod mount;
mod network;
mod process;
mod sys;
mod terminal;
mod victim;

use sys::{Stop, Try};

/// What a way is called, and what tries it.
type Way = (&'static str, fn(&[&str]) -> Try);

const WAYS: &[Way] = &[
    ("find-process", process::find),
    ("process-root", process::root),
    ("process-file", process::file),
    ("process-memory", process::memory),
    ("process-descriptors", process::descriptors),
    ("take-descriptor", process::take_descriptor),
    ("ptrace", process::ptrace),
    ("vm-read", process::vm_read),
    ("vm-write", process::vm_write),
    ("signal", process::signal),
    ("signal-thread", process::signal_thread),
    ("signal-all", process::signal_all),
    ("signal-pidfd", process::signal_pidfd),
    ("priority", process::priority),
    ("resource-limit", process::resource_limit),
    ("unix", network::unix),
    ("abstract", network::abstract_name),
    ("tcp", network::tcp),
    ("interfaces", network::interfaces),
    ("socket-diag", network::socket_diag),
    ("add-address", network::add_address),
    ("socket", network::socket),
    ("mount-tmpfs", mount::tmpfs),
    ("mount-bind", mount::bind),
    ("mount-proc", mount::proc),
    ("mount-cgroup", mount::cgroup),
    ("mount-new", mount::new_interface),
    ("mount-clone", mount::clone_tree),
    ("mount-writable", mount::writable),
    ("unmount", mount::unmount),
    ("pivot-root", mount::pivot_root),
    ("chroot", mount::chroot),
    ("unshare", mount::unshare),
    ("unshare-and-mount", mount::unshare_and_mount),
    ("clone-user", mount::clone_user),
    ("set-namespace", mount::set_namespace),
    ("parent-namespace", mount::parent_namespace),
    ("open-by-handle", mount::open_by_handle),
    ("read", file::read),
    ("open-writable", file::open_writable),
    ("create", file::create),
    ("make-device", file::make_device),
    ("shared-memory", file::shared_memory),
    ("message-queue", file::message_queue),
    ("setuid-program", account::setuid_program),
    ("plant-setuid", account::plant_setuid),
    ("become", account::become_id),
    ("capability", account::capability),
    ("who", account::who),
    ("key-read", kernel::key_read),
    ("key-search", kernel::key_search),
    ("key-add", kernel::key_add),
    ("bpf", kernel::bpf),
    ("perf", kernel::perf),
    ("io-uring", kernel::io_uring),
    ("userfaultfd", kernel::userfaultfd),
    ("kernel-log", kernel::log),
    ("module", kernel::module),
    ("ports", kernel::ports),
    ("host-name", kernel::host_name),
    ("inject-input", terminal::inject),
    ("inject-own-input", terminal::inject_own),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((name, arguments)) = words.split_first() else {
        println!("{}", WAYS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("\n"));
        std::process::exit(2);
    };
    match *name {
        "init" => hostile::init(),
        "serve" => hostile::true_agent(arguments),
        "archive" => archive::print(arguments),
        "keyed" => kernel::keyed(arguments),
        "victim" => victim::run(arguments),
        "idle" => process::idle(),
        // long enough to be found
        "linger" => return std::thread::sleep(std::time::Duration::from_secs(20)),
        _ => {}
    }
    let Some((_, way)) = WAYS.iter().find(|(known, _)| known == name) else {
        println!("cannot try: there is no way {name}");
        std::process::exit(2);
    };
    let code = match way(arguments) {
        Ok(got) => {
            println!("out: {got}");
            0
        }
        Err(Stop::Refused { what, errno }) => {
            println!("stopped: {what}: {errno:?}");
            1
        }
        Err(Stop::Nothing(what)) => {
            println!("stopped: {what}");
            1
        }
        Err(Stop::Cannot(why)) => {
            println!("cannot try: {why}");
            2
        }
    };
    std::process::exit(code);
}
