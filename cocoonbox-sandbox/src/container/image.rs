//! Images: from the data directory, from the engine, or from a registry.
//!
//! ```text
//!  <data>/images/<name>/<version>/rootfs/     an unpacked root file system, imported once for each content
//!  <data>/images/<name>/<version>/image.tar   what `podman save` or `docker save` wrote, or an OCI archive; loaded
//!  the engine's own <name>:<version>
//!  <registry>/<name>:<version>                pulled, where a registry is configured
//! ```

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bollard::errors::Error;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::{
    CreateImageOptionsBuilder, ImportImageOptionsBuilder, TagImageOptionsBuilder,
};
use bytes::Bytes;
use cocoonbox_core::ImageName;
use cocoonbox_core::backend::BackendError;
use futures::{Stream, StreamExt as _};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::Inner;
use super::engine::Engine;
use super::error::{Answer as _, BACKEND, engine, failed, refused, status, words};
use super::serve;
use crate::bwrap::open::hex;

/// Where imported images are kept in the engine.
const REPOSITORY: &str = "localhost/cocoonbox";
/// How large the pieces of an import are.
const PIECE: usize = 256 * 1024;

/// What a box has of its own in `/etc`, and where it leads: no image's file may stand there.
const LINKS: [(&str, &str); 2] =
    [("etc/machine-id", "/run/cocoonbox-identity/machine-id"), ("etc/mtab", "/proc/self/mounts")];

/// Finds an image and brings it into the engine; the answer is how the engine calls it.
pub(super) async fn bring(inner: &Inner, image: &ImageName) -> Result<String, BackendError> {
    if *image == ImageName::host() {
        return Err(BackendError::Unsupported {
            backend: BACKEND,
            what: "run the image `host`, which is the machine itself: name an image that the engine has, or one of the \
                   data directory's images/"
                .to_owned(),
        });
    }
    let (name, version) = image.as_str().split_once(':').unwrap_or((image.as_str(), "latest"));
    let folder = inner.data.join("images").join(name).join(version);
    // one at a time: two claims of a new image need it once
    let _turn = inner.image_turn.lock().await;
    if let Some(source) = Source::of(&folder) {
        return source.into_engine(&inner.engine, name, version).await;
    }
    let own = format!("{name}:{version}");
    if let Some(id) = identify(&inner.engine, &own).await? {
        return Ok(id);
    }
    let unknown = || BackendError::UnknownImage { image: image.as_str().to_owned() };
    let registry = inner.config.registry.as_ref().ok_or_else(unknown)?;
    let reference = format!("{}/{own}", registry.trim_end_matches('/'));
    pull(&inner.engine, &reference).await?;
    identify(&inner.engine, &reference).await?.ok_or_else(unknown)
}

/// Returns the engine's id of an image.
async fn identify(to: &Engine, reference: &str) -> Result<Option<String>, BackendError> {
    let found = to.images().inspect_image(reference).await.there();
    Ok(found.map_err(engine("the engine cannot look for an image"))?.and_then(|image| image.id))
}

/// An image in the data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Folder(PathBuf),
    Archive(PathBuf),
}

impl Source {
    fn of(folder: &Path) -> Option<Self> {
        let (rootfs, archive) = (folder.join("rootfs"), folder.join("image.tar"));
        if rootfs.is_dir() {
            Some(Self::Folder(rootfs))
        } else {
            archive.is_file().then_some(Self::Archive(archive))
        }
    }

    const fn path(&self) -> &PathBuf {
        match self {
            Self::Folder(path) | Self::Archive(path) => path,
        }
    }

    /// Names what is there now: another file or folder, or one that was changed at its top, has another name.
    fn stamp(&self) -> io::Result<String> {
        let found = fs::metadata(self.path())?;
        let parts = [found.dev(), found.ino(), found.mtime() as u64, found.mtime_nsec() as u64, found.len()];
        Ok(hex(&Sha256::digest(parts.map(u64::to_be_bytes).concat())[..4]))
    }

    async fn into_engine(self, to: &Engine, name: &str, version: &str) -> Result<String, BackendError> {
        let stamp = self.stamp().map_err(refused("an image in the data directory cannot be read"))?;
        let (repository, tag) = (format!("{REPOSITORY}/{name}"), format!("{}_{stamp}", cut(version)));
        let reference = format!("{repository}:{tag}");
        if let Some(id) = identify(to, &reference).await? {
            return Ok(id);
        }
        tracing::info!(image = %reference, source = %self.path().display(), "an image is brought into the engine");
        match &self {
            Self::Folder(rootfs) => import(to, rootfs.clone(), &reference).await?,
            Self::Archive(archive) => load(to, archive, &repository, &tag).await?,
        }
        identify(to, &reference)
            .await?
            .ok_or_else(|| failed(format!("{reference} was imported and is not there"), None))
    }
}

/// A tag has 128 letters, and the stamp is some of them.
fn cut(version: &str) -> &str {
    version.get(..100).unwrap_or(version)
}

/// Has the engine make an image of a folder.
async fn import(to: &Engine, rootfs: PathBuf, reference: &str) -> Result<(), BackendError> {
    let (sender, receiver) = mpsc::channel(4);
    serve::beside(move || {
        let mut pieces = Pieces { sender, piece: Vec::with_capacity(PIECE) };
        if let Err(error) = pack(&rootfs, &mut pieces).and_then(|()| pieces.flush()) {
            // the engine must not take a part for the whole
            let _ = pieces.sender.blocking_send(Err(error));
        }
    });
    let options = CreateImageOptionsBuilder::new().from_src("-").repo(reference).build();
    let body = bollard::body_try_stream(ReceiverStream::new(receiver));
    watch(to.images().create_image(Some(options), Some(body), None), reference).await.map_err(|error| {
        failed(format!("the image could not be imported: {}", words(&error)), Some(io::Error::other(error)))
    })
}

/// Has the engine load an archive and gives its image a name.
async fn load(to: &Engine, archive: &Path, repository: &str, tag: &str) -> Result<(), BackendError> {
    let cannot = |error: Error| failed(format!("the image could not be loaded: {}", words(&error)), None);
    let file = tokio::fs::File::open(archive).await.map_err(refused("an image's archive cannot be read"))?;
    let pieces = tokio_util::io::ReaderStream::with_capacity(file, PIECE);
    let options = ImportImageOptionsBuilder::new().build();
    let mut answers = std::pin::pin!(to.images().import_image_stream(options, pieces, None));
    let mut loaded = None;
    while let Some(answer) = answers.next().await {
        let said = answer.map_err(cannot)?.stream.unwrap_or_default();
        // "Loaded image: NAME", "Loaded image ID: sha256:…", "Loaded image(s): NAME,NAME"
        if let Some((_, names)) =
            said.trim().strip_prefix("Loaded image").and_then(|rest| rest.split_once(": "))
        {
            loaded = names.split(',').next().map(|name| name.trim().to_owned());
        }
    }
    let loaded = loaded.ok_or_else(|| failed("the engine does not say what it loaded", None))?;
    let options = TagImageOptionsBuilder::new().repo(repository).tag(tag).build();
    to.images().tag_image(&loaded, Some(options)).await.map_err(cannot)
}

/// Has the engine fetch an image from a registry.
async fn pull(to: &Engine, reference: &str) -> Result<(), BackendError> {
    tracing::info!(image = %reference, "an image is pulled");
    let options = CreateImageOptionsBuilder::new().from_image(reference).build();
    watch(to.images().create_image(Some(options), None, None), reference).await.map_err(|error| {
        if status(&error) == Some(404) {
            return BackendError::UnknownImage { image: reference.to_owned() };
        }
        BackendError::Unavailable {
            backend: BACKEND,
            reason: format!("{reference} could not be pulled: {}", words(&error)),
            source: Some(Box::new(error)),
        }
    })
}

/// Follows what an engine says about an image on its way.
async fn watch(
    progress: impl Stream<Item = Result<CreateImageInfo, Error>>,
    reference: &str,
) -> Result<(), Error> {
    let mut progress = std::pin::pin!(progress);
    while let Some(step) = progress.next().await {
        let step = step?;
        let detail = step.progress_detail.unwrap_or_default();
        tracing::debug!(
            image = reference,
            layer = step.id.as_deref().unwrap_or_default(),
            status = step.status.as_deref().unwrap_or_default(),
            bytes = detail.current.unwrap_or_default(),
            of = detail.total.unwrap_or_default(),
            "an image is on its way"
        );
    }
    Ok(())
}

/// Hands pieces over from a thread that may wait.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE)));
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Writes a root file system as a tar archive: owners and modes as they are, links as links, sockets left out.
fn pack(rootfs: &Path, out: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    let mut todo = vec![PathBuf::new()];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(rootfs.join(&folder))? {
            let entry = entry?;
            let (name, kind) = (folder.join(entry.file_name()), entry.file_type()?);
            if LINKS.iter().any(|(own, _)| name == Path::new(own)) {
                continue;
            }
            if kind.is_dir() {
                archive.append_dir(&name, entry.path())?;
                todo.push(name);
            } else if kind.is_file() || kind.is_symlink() {
                archive.append_path_with_name(entry.path(), &name)?;
            }
        }
    }
    for (name, target) in LINKS {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        archive.append_link(&mut header, name, target)?;
    }
    archive.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_folder_is_whole_but_for_what_a_box_owns() -> Result<(), Box<dyn std::error::Error>> {
        let rootfs = tempfile::tempdir()?;
        for directory in ["usr/bin", "etc", "empty"] {
            fs::create_dir_all(rootfs.path().join(directory))?;
        }
        fs::write(rootfs.path().join("usr/bin/tool"), "x")?;
        fs::write(rootfs.path().join("etc/machine-id"), "the image's")?;
        std::os::unix::fs::symlink("usr/bin", rootfs.path().join("bin"))?;
        let _socket = std::os::unix::net::UnixListener::bind(rootfs.path().join("socket"))?;
        let mut bytes = Vec::new();
        pack(rootfs.path(), &mut bytes)?;
        let mut names = Vec::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries()? {
            let entry = entry?;
            let link = entry.link_name()?.map(|link| format!(" -> {}", link.display())).unwrap_or_default();
            names.push(format!("{}{link}", entry.path()?.display()));
        }
        names.sort();
        assert_eq!(
            names,
            [
                "bin -> usr/bin",
                "empty",
                "etc",
                "etc/machine-id -> /run/cocoonbox-identity/machine-id",
                "etc/mtab -> /proc/self/mounts",
                "usr",
                "usr/bin",
                "usr/bin/tool",
            ]
        );
        Ok(())
    }

    #[test]
    fn a_folder_that_was_replaced_has_another_stamp() -> io::Result<()> {
        let image = tempfile::tempdir()?;
        assert_eq!(Source::of(image.path()), None);
        fs::write(image.path().join("image.tar"), "one")?;
        let archive = Source::of(image.path()).ok_or(io::ErrorKind::NotFound)?;
        let before = archive.stamp()?;
        assert_eq!(before, archive.stamp()?);
        fs::write(image.path().join("new"), "another")?;
        fs::rename(image.path().join("new"), image.path().join("image.tar"))?;
        assert_ne!(before, archive.stamp()?);
        fs::create_dir(image.path().join("rootfs"))?;
        assert!(matches!(Source::of(image.path()), Some(Source::Folder(_))));
        Ok(())
    }
}
