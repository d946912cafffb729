//! What a node is told when it starts. Reading flags, files and the environment is the binary's.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::images::Images;
use crate::isolation::{Isolation, fnv1a};
use crate::records::LogLimits;

#[derive(Debug, Clone)]
pub struct Config {
    /// The name of the Node object.
    pub name: String,
    /// Records and logs; nobody else may enter.
    pub state: PathBuf,
    /// What pods see. With a user per pod, every directory above must let others pass.
    pub pods: PathBuf,
    pub shim: ShimCommand,
    pub isolation: Isolation,
    pub images: Images,
    /// Places that every pod may read and none may write, such as a store of programs. With a user per pod the file system says so
    /// already; without, they are added to what a pod sees.
    pub readable: Vec<PathBuf>,
    pub schedule: Schedule,
    pub jobs: Jobs,
    pub admission: Admission,
    /// How many pods may run at a time; the others wait.
    pub max_pods: usize,
    pub log: LogLimits,
}

/// How the node starts a shim: this program with these arguments and then the directory of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShimCommand {
    pub program: PathBuf,
    pub args: Vec<OsString>,
}

/// Who gives pods to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// The API has no scheduler: this node binds every pod that it may run to itself.
    BindUnscheduled,
    LeaveToScheduler,
}

/// Which pods a scheduler may give to this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Every pod.
    Everything,
    /// Pods that tolerate this taint, which the Node is made with. Whoever administers the cluster may take it away for good.
    Tolerating { taint: String },
}

/// Who makes the pods of Jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jobs {
    /// The API has no job controller: this node plays it.
    Control,
    LeaveToController,
}

pub const DEFAULT_MAX_PODS: usize = 110;

/// Where the pods of a node with this state directory live.
///
/// A process node has no mount namespace, so a pod's own user must be able to walk to its files. The data directory
/// is closed to others and often lies below a home that is closed too. With a user per pod the files therefore go to a
/// place of the system that everybody may pass and only root may list; without, they stay with the rest of the data.
pub fn pods_directory(state: &Path, isolation: &Isolation) -> PathBuf {
    match isolation {
        Isolation::Users(_) => {
            let name = format!("{:016x}", fnv1a(state.as_os_str().as_encoded_bytes()));
            Path::new("/var/lib/terrane/nodes").join(name)
        }
        Isolation::Landlock | Isolation::None { .. } => state.join("run"),
    }
}

/// A place that all pods of a node may read and write, on a node where somebody made it. Otherwise pods share nothing.
pub fn commons_directory(pods: &Path) -> PathBuf {
    pods.join("commons")
}

/// The directory to put first on the path of the local image, in which pods find `program` as `name`: where it is, if they can
/// execute it there and it is called so, else a copy among the pods' files.
pub fn program_directory(
    program: &Path,
    name: &str,
    pods: &Path,
    isolation: &Isolation,
) -> io::Result<PathBuf> {
    let is_reachable = match isolation {
        Isolation::Landlock | Isolation::None { .. } => true,
        Isolation::Users(_) => others_can_reach(program)?,
    };
    let is_called_so = program.file_name().is_some_and(|file| file == name);
    if is_reachable && is_called_so {
        return Ok(program.parent().unwrap_or(Path::new("/")).to_owned());
    }
    let directory = pods.join("bin");
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&directory)?;
    // Renamed into place: a pod that is executing the old copy keeps it.
    let temporary = directory.join(format!(".{}", std::process::id()));
    std::fs::copy(program, &temporary)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(&temporary, directory.join(name))?;
    Ok(directory)
}

/// Whether a user without any special right can execute this file, or pass through this directory.
pub fn others_can_reach(path: &Path) -> io::Result<bool> {
    let path = path.canonicalize()?;
    for path in path.ancestors() {
        if std::fs::metadata(path)?.mode() & 0o001 == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes the pods' directory so that pods can pass through it to their own, and nobody else can prepare it for us.
pub(crate) fn open_pods_directory(path: &Path, isolation: &Isolation) -> io::Result<()> {
    let mode = match isolation {
        Isolation::Users(_) => 0o711,
        Isolation::Landlock | Isolation::None { .. } => 0o700,
    };
    if !path.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    }
    let found = std::fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it is not a directory of this user"));
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    if let Isolation::Users(_) = isolation {
        let closed = path.canonicalize()?.ancestors().find_map(|above| {
            let passable = std::fs::metadata(above).is_ok_and(|found| found.mode() & 0o001 != 0);
            (!passable).then(|| above.to_owned())
        });
        if let Some(closed) = closed {
            return Err(io::Error::other(format!(
                "pods have users of their own and {} does not let others pass; choose a directory below which they can",
                closed.display()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::isolation::UserRange;

    const USERS: Isolation = Isolation::Users(UserRange { first: 2_000_000_000, count: 10 });

    fn closed_directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        directory
    }

    #[test]
    fn a_program_in_a_closed_directory_is_copied_to_where_pods_can_execute_it() {
        let closed = closed_directory();
        let pods = tempfile::tempdir().unwrap();
        let program = closed.path().join("program");
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let found = |program: &Path, name: &str, isolation: &Isolation| {
            program_directory(program, name, pods.path(), isolation).unwrap()
        };
        let copies = pods.path().join("bin");
        assert_eq!(found(&program, "program", &USERS), copies);
        assert_eq!(std::fs::metadata(copies.join("program")).unwrap().mode() & 0o777, 0o755);
        assert_eq!(found(&program, "program", &Isolation::Landlock), closed.path());
        assert_eq!(found(Path::new("/bin/sh"), "sh", &USERS), Path::new("/bin"));
    }

    #[test]
    fn a_program_that_was_given_another_name_is_found_by_the_one_that_pods_know() {
        let (here, pods) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let program = here.path().join("terrane-1.2");
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        let found = program_directory(&program, "terrane", pods.path(), &Isolation::Landlock).unwrap();
        assert_eq!(std::fs::read(found.join("terrane")).unwrap(), b"#!/bin/sh\n");
    }

    #[test]
    fn a_pods_directory_that_pods_cannot_reach_is_refused_with_the_reason() {
        let closed = closed_directory();
        let path = closed.path().join("pods");
        let error = open_pods_directory(&path, &USERS).unwrap_err();
        assert!(error.to_string().contains("does not let others pass"), "{error}");
        open_pods_directory(&path, &Isolation::Landlock).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }
}
