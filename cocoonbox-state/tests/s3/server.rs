//! S3 servers that are ours: a strict one in this process, and rclone, which is a process of its own and ended after.

use std::error::Error;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_state::{S3Config, S3Secret};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::dto;
use s3s::service::S3ServiceBuilder;
use s3s::{S3, S3ErrorCode, S3Request, S3Response, S3Result};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

pub(crate) const ACCESS: &str = "access";
pub(crate) const SECRET: &str = "canary-secret";

/// A server that ends with this value.
#[derive(Debug)]
pub(crate) enum Server {
    Here(JoinHandle<()>),
    Process(Child),
}

impl Drop for Server {
    fn drop(&mut self) {
        match self {
            Self::Here(task) => task.abort(),
            Self::Process(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Describes the bucket `bucket` of a server.
pub(crate) fn bucket(address: SocketAddr) -> S3Config {
    S3Config::new(
        format!("http://{address}"),
        "bucket".to_owned(),
        ACCESS.to_owned(),
        S3Secret::new(SECRET.to_owned()),
    )
}

/// s3s-fs, and what S3 promises and its 0.14.1 does not keep: a tail that is longer than the object is all of it, of
/// puts that are only to be where nothing is one is, and what does not fit its checksum is not there.
#[derive(Debug)]
struct Strict {
    files: FileSystem,
    folder: PathBuf,
    puts: Mutex<()>,
}

impl Strict {
    fn place(&self, bucket: &str, key: &str) -> PathBuf {
        self.folder.join(bucket).join(key)
    }
}

#[async_trait]
impl S3 for Strict {
    async fn get_object(
        &self,
        mut request: S3Request<dto::GetObjectInput>,
    ) -> S3Result<S3Response<dto::GetObjectOutput>> {
        if let Some(dto::Range::Suffix { length }) = &mut request.input.range {
            let object = self.place(&request.input.bucket, &request.input.key);
            *length = fs::metadata(object).map_or(*length, |there| there.len().min(*length));
        }
        self.files.get_object(request).await
    }

    async fn put_object(
        &self,
        request: S3Request<dto::PutObjectInput>,
    ) -> S3Result<S3Response<dto::PutObjectOutput>> {
        let _alone = self.puts.lock().await;
        let object = self.place(&request.input.bucket, &request.input.key);
        let put = self.files.put_object(request).await;
        if put.as_ref().is_err_and(|error| *error.code() == S3ErrorCode::BadDigest) {
            let _ = fs::remove_file(object);
        }
        put
    }

    async fn head_object(
        &self,
        request: S3Request<dto::HeadObjectInput>,
    ) -> S3Result<S3Response<dto::HeadObjectOutput>> {
        self.files.head_object(request).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<dto::ListObjectsV2Input>,
    ) -> S3Result<S3Response<dto::ListObjectsV2Output>> {
        self.files.list_objects_v2(request).await
    }

    async fn delete_object(
        &self,
        request: S3Request<dto::DeleteObjectInput>,
    ) -> S3Result<S3Response<dto::DeleteObjectOutput>> {
        self.files.delete_object(request).await
    }

    async fn delete_objects(
        &self,
        request: S3Request<dto::DeleteObjectsInput>,
    ) -> S3Result<S3Response<dto::DeleteObjectsOutput>> {
        self.files.delete_objects(request).await
    }
}

/// Starts s3s-fs on a folder. It enforces what S3 promises: signed headers, expiry, checksums, conditional puts.
pub(crate) async fn strict(folder: &Path) -> Result<(Server, SocketAddr), Box<dyn Error>> {
    fs::create_dir_all(folder.join("bucket"))?;
    let files = FileSystem::new(folder).map_err(|error| format!("{error:?}"))?;
    let mut builder =
        S3ServiceBuilder::new(Strict { files, folder: folder.to_owned(), puts: Mutex::default() });
    builder.set_auth(SimpleAuth::from_single(ACCESS, SECRET));
    let service = builder.build();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let task = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let connections = Builder::new(TokioExecutor::new());
                let _ = connections.serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    Ok((Server::Here(task), address))
}

fn rclone_path() -> PathBuf {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/venv/bin/rclone");
    if ours.exists() { ours } else { "rclone".into() }
}

/// Starts `rclone serve s3` on a folder. It checks signatures and lengths, and overwrites what is there.
pub(crate) async fn rclone(folder: &Path) -> Result<(Server, SocketAddr), Box<dyn Error>> {
    fs::create_dir_all(folder.join("bucket"))?;
    let address = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let mut command = Command::new(rclone_path());
    command.args([
        "serve",
        "s3",
        "--addr",
        &address.to_string(),
        "--auth-key",
        &format!("{ACCESS},{SECRET}"),
    ]);
    command.args(["--config", "/dev/null"]).arg(folder).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command
        .spawn()
        .map_err(|error| format!("rclone cannot be started: `scripts/need.sh test` installs it ({error})"))?;
    let server = Server::Process(child);
    for _ in 0..400 {
        if TcpStream::connect(address).is_ok() {
            return Ok((server, address));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err("rclone does not answer".into())
}
