//! What the kernel says about processes: identity, liveness, the process table, and signals that cannot hit a stranger.
//!
//! A pid alone names nothing, because the kernel gives it out again. Everywhere in this crate a process is a pid
//! together with its start time; a signal goes through a pidfd that was opened first and compared afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

/// One process for as long as this boot lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// Clock ticks between boot and the start of the process.
    pub start: u64,
}

/// One line of the process table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub process: Process,
    pub parent: i32,
    pub session: i32,
    pub state: State,
    /// The effective user, which owns the process's directory under /proc.
    pub uid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Alive,
    /// It has ended and waits for its parent to ask how.
    Zombie,
}

/// Whether a signal found its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Sent,
    Gone,
}

/// Differs after every boot of the machine.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The process that has this pid now, a zombie included.
pub fn identify(pid: i32) -> io::Result<Option<Process>> {
    Ok(read_entry(pid)?.map(|entry| entry.process))
}

impl Process {
    pub fn current() -> io::Result<Process> {
        let pid = rustix::process::getpid().as_raw_pid();
        identify(pid)?.ok_or_else(|| io::Error::other("this process is not in its own process table"))
    }

    /// True while it executes; a zombie does not.
    pub fn is_alive(&self) -> io::Result<bool> {
        Ok(read_entry(self.pid)?.is_some_and(|entry| entry.process == *self && entry.state == State::Alive))
    }

    /// A descriptor that becomes readable when the process ends. `None` when it already has.
    pub fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let fd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // Compared after opening: from here on the descriptor cannot come to mean another process.
        Ok((identify(self.pid)? == Some(*self)).then_some(fd))
    }

    pub fn signal(&self, signal: Signal) -> io::Result<Delivery> {
        let Some(fd) = self.open()? else { return Ok(Delivery::Gone) };
        match rustix::process::pidfd_send_signal(&fd, signal) {
            Ok(()) => Ok(Delivery::Sent),
            Err(rustix::io::Errno::SRCH) => Ok(Delivery::Gone),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Every process that this one can see. O(processes of the machine).
pub fn table() -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for file in std::fs::read_dir("/proc")? {
        let Some(pid) = file?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // A process may end between the listing and the reading; then it is no part of the table.
        if let Some(entry) = read_entry(pid)? {
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// All processes below `ancestor`, zombies included, the ancestor not. O(n log n) in the table.
pub fn descendants(table: &[Entry], ancestor: i32) -> Vec<Entry> {
    let mut children: BTreeMap<i32, Vec<&Entry>> = BTreeMap::new();
    for entry in table {
        children.entry(entry.parent).or_default().push(entry);
    }
    let mut found = Vec::new();
    let mut seen = BTreeSet::from([ancestor]);
    let mut next = vec![ancestor];
    while let Some(parent) = next.pop() {
        for entry in children.get(&parent).into_iter().flatten() {
            if seen.insert(entry.process.pid) {
                found.push((*entry).clone());
                next.push(entry.process.pid);
            }
        }
    }
    found
}

fn read_entry(pid: i32) -> io::Result<Option<Entry>> {
    use std::os::unix::fs::MetadataExt;
    let directory = format!("/proc/{pid}");
    let text = match std::fs::read_to_string(format!("{directory}/stat")) {
        Ok(text) => text,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let uid = match std::fs::metadata(&directory) {
        Ok(metadata) => metadata.uid(),
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    parse_stat(pid, &text, uid)
        .map(Some)
        .ok_or_else(|| io::Error::other(format!("{directory}/stat has an unknown form: {text:?}")))
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// The command's name stands in parentheses and may itself hold spaces and parentheses, so the last one counts.
fn parse_stat(pid: i32, text: &str, uid: u32) -> Option<Entry> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let state = match *fields.first()? {
        "Z" | "X" | "x" => State::Zombie,
        _ => State::Alive,
    };
    Some(Entry {
        process: Process { pid, start: fields.get(19)?.parse().ok()? },
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        state,
        uid,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_does_not_shift_the_fields() {
        let text = "42 (a) b) (c)) S 7 42 40 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 0 0";
        let entry = parse_stat(42, text, 1000).unwrap();
        assert_eq!(entry.process, Process { pid: 42, start: 987_654 });
        assert_eq!((entry.parent, entry.session, entry.state, entry.uid), (7, 40, State::Alive, 1000));
    }

    #[test]
    fn a_pid_with_another_start_time_is_another_process() {
        let me = Process::current().unwrap();
        assert!(me.is_alive().unwrap());
        let before = Process { start: me.start - 1, ..me };
        assert!(!before.is_alive().unwrap());
        assert!(before.open().unwrap().is_none());
        assert_eq!(before.signal(Signal::KILL).unwrap(), Delivery::Gone);
    }

    #[test]
    fn descendants_are_found_through_generations_and_never_twice() {
        let entry = |pid, parent| Entry {
            process: Process { pid, start: 1 },
            parent,
            session: 1,
            state: State::Alive,
            uid: 0,
        };
        let table = [entry(1, 0), entry(2, 1), entry(3, 2), entry(4, 3), entry(5, 1), entry(9, 9)];
        let mut pids: Vec<i32> = descendants(&table, 2).iter().map(|e| e.process.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [3, 4]);
        assert!(descendants(&table, 9).is_empty());
    }
}
