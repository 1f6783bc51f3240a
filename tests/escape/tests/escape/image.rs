//! What an image holds that only root can have put there: programs that give their owner's rights away, devices, open
//! folders.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use cocoonbox_core::backend::ClaimRequest;
use cocoonbox_sandbox::Defence;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::Uid;

use crate::data::Data;
use crate::guest::{Ran, exec};
use crate::opener::{Bwrap, Opener as _};
use crate::{Error, attacker};

/// An image of the attacker alone, with a copy that is root's and setuid, a device and an open folder.
fn plant(data: &Path) -> Result<(), Error> {
    let usr = data.join("images/trap/latest/rootfs/usr");
    fs::create_dir_all(usr.join("open"))?;
    fs::set_permissions(usr.join("open"), fs::Permissions::from_mode(0o777))?;
    for (name, mode) in [("attacker", 0o755), ("as-root", 0o6755)] {
        cocoonbox_stories::copy_program(&attacker(), &usr.join(name))?;
        chown(usr.join(name), Some(0), Some(0))?;
        fs::set_permissions(usr.join(name), fs::Permissions::from_mode(mode))?;
    }
    let everybody = Mode::from_bits_truncate(0o666);
    mknod(&usr.join("random"), SFlag::S_IFCHR, everybody, makedev(1, 9))?;
    fs::set_permissions(usr.join("random"), fs::Permissions::from_mode(0o666))?;
    Ok(())
}

async fn tried(without: &[Defence]) -> Result<Vec<Ran>, Error> {
    let data = Data::new()?;
    let backend = Bwrap.open(&data.path(), without).await?;
    plant(&data.path())?;
    let claim = backend.claim(ClaimRequest::new("trap".parse()?, "trap".parse()?)).await?;
    let mut tried = Vec::new();
    for words in [
        ["/usr/attacker", "setuid-program", "/usr/as-root"],
        ["/usr/attacker", "read", "/usr/random"],
        ["/usr/attacker", "create", "/usr/open"],
    ] {
        tried.push(exec(&*backend, &claim.id, &words).await?);
    }
    backend.release(&claim.id).await?;
    Ok(tried)
}

#[test]
fn what_root_left_in_an_image_gives_nothing_away() {
    if !Uid::effective().is_root() {
        println!("left out: only root can put such things into an image");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let story = async {
        let held = tried(&[]).await?;
        for ran in &held {
            println!("in a box: {}", ran.said);
        }
        if held.iter().any(|ran| ran.code != 1) {
            return Err(format!("a box took what an image holds: {held:?}").into());
        }
        // the controls: on the host, as a user of no importance
        let folder = tempfile::Builder::new().prefix("cocoonbox-escape-").tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        plant(folder.path())?;
        let usr = folder.path().join("images/trap/latest/rootfs/usr");
        for (way, place, proof) in [
            ("setuid-program", "as-root", "out: 0 0"),
            ("read", "random", "out: "),
            ("create", "open", "out: "),
        ] {
            let ran = std::process::Command::new("setpriv")
                .args(["--reuid=61237", "--regid=61237", "--clear-groups", "--"])
                .arg(usr.join("attacker"))
                .arg(way)
                .arg(usr.join(place))
                .output()?;
            let said = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
            println!("outside: {said}");
            if !said.starts_with(proof) {
                return Err(format!("{way} proves nothing: {said}").into());
            }
        }
        Ok(())
    };
    crate::shown(runtime.map_err(Error::from).and_then(|runtime| runtime.block_on(story)));
}
