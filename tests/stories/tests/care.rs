//! Saves as a whole: proven, pruned, carried to another server; and a box that moves to another image.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cocoonbox_stories::{Account, Server, eventually, files, rclone};
use nix::sys::signal::Signal;
use serde_json::Value;

fn copy_with_libraries(program: &Path, rootfs: &Path) {
    let name = program.file_name().expect("a program");
    let program = fs::canonicalize(program).expect("a program of this machine");
    cocoonbox_stories::copy_program(&program, &rootfs.join("usr/bin").join(name)).expect("own folder");
    let needs = Command::new("ldd").arg(&program).output().expect("ldd runs");
    for library in
        String::from_utf8_lossy(&needs.stdout).split_whitespace().filter(|word| word.starts_with('/'))
    {
        let place = rootfs.join(library.trim_start_matches('/'));
        fs::create_dir_all(place.parent().expect("a folder")).expect("own folder");
        fs::copy(library, place).expect("own folder");
    }
}

/// Puts image `small:1` into the node's images: a shell and a few programs.
fn small_image(server: &Server) {
    let rootfs = server.data().join("node/images/small/1/rootfs");
    for folder in ["usr/bin", "etc", "root"] {
        fs::create_dir_all(rootfs.join(folder)).expect("own folder");
    }
    fs::write(rootfs.join("etc/issue"), "small\n").expect("own folder");
    std::os::unix::fs::symlink("usr/bin", rootfs.join("bin")).expect("own folder");
    for name in ["sh", "cat", "ls", "sleep", "sha256sum"] {
        copy_with_libraries(&Path::new("/bin").join(name), &rootfs);
    }
}

#[test]
fn a_box_moves_to_another_image_with_its_files_and_stays_where_it_was_if_that_does_not_start() {
    let mut server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    small_image(&server);
    server.sh("echo kept > ~/kept; mkdir -p /workspace/p; seq 20000 > /workspace/p/numbers; (sleep 1000 &)");

    let refused = server.cli(&["box", "upgrade", "main", "--image", "small:1"]);
    assert_eq!(refused.code, Some(3), "nobody was asked: {refused:?}");
    let gone = server.cli(&["box", "upgrade", "main", "--image", "gone:9", "--yes"]);
    assert_ne!(gone.code, Some(0), "{gone:?}");
    let shown = server.json(&["box", "show", "main"]);
    assert_eq!((&shown["state"], &shown["image"]), (&"running".into(), &"host".into()), "{shown}");
    assert_eq!(server.sh("cat ~/kept"), "kept");

    server.cli(&["box", "upgrade", "main", "--image", "small:1", "--yes"]).ok();
    let shown = server.json(&["box", "show", "main"]);
    assert_eq!((&shown["state"], &shown["image"]), (&"running".into(), &"small:1".into()), "{shown}");
    assert_eq!(server.sh("cat /etc/issue ~/kept; ls /workspace/p"), "small\nkept\nnumbers");
    assert!(server.saves().iter().any(|save| save["kept"] == "before an upgrade"), "{:?}", server.saves());
    let again = server.cli(&["box", "upgrade", "main", "--image", "small:1", "--yes"]);
    assert_ne!(again.code, Some(0), "it has that image: {again:?}");
    let claims = fs::read_dir(server.data().join("node/claims")).expect("the node's folder").count();
    assert_eq!(claims, 1, "the old sandbox is released");

    // the server dies at any point of a move: the box has one image or the other, and all its files
    let sum = server.sh("sha256sum /workspace/p/numbers ~/kept");
    for round in 0..6_u64 {
        let to = if server.json(&["box", "show", "main"])["image"] == "host" { "small:1" } else { "host" };
        let moving = server
            .command(server.program())
            .args(["box", "upgrade", "main", "--yes", "--image", to])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut moving = moving.expect("the command line runs");
        std::thread::sleep(Duration::from_millis(60 + round * 170));
        server.end(Signal::SIGKILL);
        // it would look for the server for a while
        let _ = moving.kill().and_then(|()| moving.wait());
        server.start_again();
        server.cli(&["box", "ensure", "main"]).ok();
        let image = server.json(&["box", "show", "main"])["image"].clone();
        assert!(image == "host" || image == "small:1", "{image}");
        assert_eq!(server.sh("sha256sum /workspace/p/numbers ~/kept"), sum, "round {round}, image {image}");
        let claims = fs::read_dir(server.data().join("node/claims")).expect("the node's folder").count();
        assert_eq!(claims, 1, "round {round}: one sandbox is left");
    }
}

#[test]
fn a_check_names_what_is_damaged_and_a_prune_takes_out_what_no_save_needs() {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh("head -c 3000000 /dev/urandom > ~/good-file");
    server.cli(&["save", "main"]).ok();
    let good = server.json(&["check"]);
    assert_eq!(good["damages"].as_array().map(Vec::len), Some(0), "{good}");
    assert!(good["bytes"].as_u64() > Some(3_000_000), "{good}");
    assert_eq!(server.cli(&["prune"]).ok(), "nothing to take out");

    let before = files(&server.data().join("state"));
    server.sh("head -c 3000000 /dev/urandom > ~/hit-file");
    server.cli(&["save", "main"]).ok();
    let new = files(&server.data().join("state"));
    let pack = new
        .iter()
        .filter(|path| !before.contains(path))
        .max_by_key(|path| path.metadata().map_or(0, |found| found.len()));
    let pack = pack.expect("a save puts a pack");
    let mut bytes = fs::read(pack).expect("own store");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(pack, bytes).expect("own store");
    let hit = server.cli(&["check", "--json"]);
    assert_eq!(hit.code, Some(1), "{hit:?}");
    let report: Value =
        serde_json::from_str(String::from_utf8_lossy(&hit.stdout).lines().next().unwrap_or_default())
            .expect("JSON");
    assert_eq!(report["damages"][0]["paths"], serde_json::json!(["/home/user/hit-file"]), "{report}");
    assert_eq!(report["damages"][0]["missing"], false);
    // the save before is whole
    let older = server.saves()[1]["id"].as_str().unwrap_or_default().to_owned();
    assert_eq!(server.json(&["check", "--save", &older])["damages"].as_array().map(Vec::len), Some(0));

    // a box that is gone leaves packs that no save needs
    server.cli(&["box", "rm", "main", "--yes"]).ok();
    let plan = server.json(&["prune", "--dry-run"]);
    assert!(plan["packs"].as_u64() >= Some(2) && plan["bytes"].as_u64() > Some(6_000_000), "{plan}");
    assert!(plan["sweep_at"].is_null(), "{plan}");
    let marked = server.json(&["prune"]);
    assert!(marked["sweep_at"].is_string() && marked["deleted"] == 0, "{marked}");
    assert!(pack.exists(), "what is marked stays for half an hour");
    assert!(server.cli(&["prune"]).ok().contains("under way"));
}

/// A real S3 server on a folder; ended with the story.
struct Bucket {
    child: Child,
    endpoint: String,
    key_file: PathBuf,
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bucket(folder: &Path) -> Bucket {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let address = format!("127.0.0.1:{port}");
    fs::create_dir_all(folder.join("objects/saves")).expect("own folder");
    let child = rclone()
        .args(["serve", "s3", "--addr", &address, "--auth-key", "story-id,story-secret-canary"])
        .args(["--vfs-cache-mode", "off", "--config", "/dev/null"])
        .arg(folder.join("objects"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("rclone runs");
    eventually("the S3 server answers", || TcpStream::connect(&address).ok());
    let key_file = folder.join("s3-key");
    fs::write(&key_file, "story-id story-secret-canary\n").expect("own folder");
    fs::set_permissions(&key_file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("own folder");
    Bucket { child, endpoint: format!("http://{address}"), key_file }
}

fn server_over(bucket: &Bucket) -> Server {
    let mut server = Server::prepare(Account::Own)
        .with_variable("COCOONBOX_STATE_STORE", "s3://saves")
        .with_variable("COCOONBOX_STATE_STORE_ENDPOINT", &bucket.endpoint)
        .with_variable("COCOONBOX_STATE_STORE_KEY_FILE", &bucket.key_file.to_string_lossy());
    server.start_again();
    server
}

#[test]
fn a_second_server_has_all_with_nothing_but_the_key_and_the_bucket() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bucket = bucket(folder.path());
    let (key, hash, sum) = {
        let mut first = server_over(&bucket);
        first.cli(&["box", "ensure"]).ok();
        first.sh("mkdir -p ~/.config; echo canary > ~/.config/canary; head -c 2000000 /dev/urandom > /workspace/big; \
             ln -s ../x /workspace/link");
        first.cli(&["save", "main"]).ok();
        first.sh("echo second > ~/second");
        first.cli(&["save", "main"]).ok();
        let key = first.cli(&["state-key", "export"]).ok();
        let hash = first.saves()[0]["root_hash"].clone();
        let sum = first.sh("sha256sum ~/.config/canary ~/second /workspace/big");
        // the key is in no log and no file but its owner's
        assert!(
            !first.log().contains("cbk1") && !first.log().contains("story-secret-canary"),
            "{}",
            first.log()
        );
        assert!(first.end(Signal::SIGTERM).success());
        first.start_again();
        (key, hash, sum)
    };
    assert!(key.starts_with("us_") && key.contains(" cbk1-"), "a name and a key");
    assert!(!files(&folder.path().join("objects")).is_empty(), "the saves are in the bucket");

    let second = server_over(&bucket);
    let wrong = second.cli_with(&["state-key", "import"], key.replace("cbk1-", "cbk1-a").as_bytes());
    assert_ne!(wrong.code, Some(0), "{wrong:?}");
    second.cli_with(&["state-key", "import"], key.as_bytes()).ok();
    second.cli_with(&["state-key", "import"], key.as_bytes()).ok();
    assert_eq!(second.json(&["box", "show", "main"])["state"], "failed");
    second.cli(&["box", "ensure", "main"]).ok();
    assert_eq!(second.sh("sha256sum ~/.config/canary ~/second /workspace/big"), sum);
    assert_eq!(second.saves()[0]["root_hash"], hash);
    // and it goes on from there: what is saved here rests on what was saved there
    second.cli(&["save", "main"]).ok();
    assert_eq!(second.saves().len(), 3);
    assert_eq!(second.saves()[0]["root_hash"], hash);
    // a user that has saves does not lose them to another key
    let other = format!("us_other{}", &key[key.find(' ').expect("a space")..]);
    assert_ne!(second.cli_with(&["state-key", "import"], other.as_bytes()).code, Some(0));
}

#[test]
fn a_master_key_is_rotated_while_the_server_stands_still_and_saves_stay_readable() {
    let mut server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh("echo kept > ~/kept");
    server.cli(&["save", "main"]).ok();
    let key = server.cli(&["state-key", "export"]).ok();
    let data = server.data();
    let rotate = |server: &Server| server.cli(&["rotate-master-key", "--data", &data.to_string_lossy()]);
    assert_ne!(rotate(&server).code, Some(0), "the server runs");
    assert!(server.end(Signal::SIGTERM).success());
    let before = fs::read(data.join("master.key")).expect("own key");
    rotate(&server).ok();
    assert_ne!(fs::read(data.join("master.key")).expect("own key"), before);
    assert!(!data.join("master.key.next").exists());
    // one that broke off before the first key was sealed anew is gone on with by the server
    fs::copy(data.join("master.key"), data.join("master.key.next")).expect("own key");
    fs::write(data.join("master.key.next"), [7; 32]).expect("own key");
    server.start_again();
    assert_eq!(fs::read(data.join("master.key")).expect("own key"), [7; 32]);
    assert_eq!(server.cli(&["state-key", "export"]).ok(), key);
    server.cli(&["check"]).ok();
}
