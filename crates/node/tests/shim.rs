//! The shim as a process: what it records, what it leaves behind, what happens when it or its node is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use node::isolation::{Confinement, Isolation, readable};
use node::process::{self, Process};
use node::records::{
    Attempt, AttemptDir, Exit, Fallback, How, Intent, Launch, LogLimits, Records, Termination,
};
use rustix::process::Signal;
use testkit::needs::{Need, found};

/// One attempt in a directory of its own. Whatever it started is gone when it is dropped.
struct Case {
    root: tempfile::TempDir,
    attempt: AttemptDir,
    shims: Vec<Child>,
}

impl Case {
    fn new() -> Case {
        let root = tempfile::tempdir().unwrap();
        let attempt = Records::open(root.path()).unwrap().attempt("uid", "main", 0);
        Case { root, attempt, shims: Vec::new() }
    }

    fn launch(&self, script: &str) -> Launch {
        Launch {
            program: "/bin/sh".into(),
            argv0: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![
                ("PATH".into(), "/usr/bin:/bin".into()),
                ("ROOT".into(), self.path("").display().to_string()),
            ],
            directory: "/".into(),
            confinement: Confinement::None,
            log: LogLimits::default(),
            termination: Termination { path: self.path("message"), fallback: Fallback::LogsOnError },
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join(name)
    }

    fn prepare(&self, launch: &Launch) {
        let intent = Intent {
            boot_id: process::boot_id().unwrap(),
            image: "i".into(),
            image_id: "i".into(),
            backoff: 0,
        };
        self.attempt.prepare(&intent, launch).unwrap();
    }

    fn spawn(&mut self) -> u32 {
        let child = Command::new(env!("CARGO_BIN_EXE_terrane-node"))
            .arg("shim")
            .arg(self.attempt.path())
            .env_clear()
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        self.shims.push(child);
        pid
    }

    fn run(script: &str) -> (Case, Exit) {
        let mut case = Case::new();
        case.prepare(&case.launch(script));
        case.spawn();
        let exit = case.exit();
        (case, exit)
    }

    fn exit(&self) -> Exit {
        until("the exit is recorded", || self.attempt.exit().unwrap())
    }

    fn running(&self) -> (Process, Process) {
        until("the child runs", || match self.attempt.observe().unwrap() {
            Some(Attempt::Running { shim, main, .. }) => Some((shim, main)),
            Some(Attempt::Exited(exit)) => panic!("it ended: {exit:?}"),
            _ => None,
        })
    }

    fn file(&self, name: &str) -> String {
        until("the container has written its file", || {
            std::fs::read_to_string(self.path(name)).ok().filter(|text| text.ends_with('\n'))
        })
        .trim()
        .to_owned()
    }

    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.attempt.path().join("log.000001")).unwrap_or_default();
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let table = process::table().unwrap_or_default();
        // What has lost its shim is found by the session that the shim began.
        if let Ok(Some(state)) = self.attempt.state() {
            for entry in table.iter().filter(|entry| entry.session == state.shim.pid) {
                let _ = entry.process.signal(Signal::KILL);
            }
        }
        for shim in &mut self.shims {
            for entry in process::descendants(&table, shim.id() as i32) {
                let _ = entry.process.signal(Signal::KILL);
            }
            let _ = shim.kill();
            let _ = shim.wait();
        }
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "waited too long until {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn alive(pid: &str) -> bool {
    let pid: i32 = pid.parse().unwrap();
    process::identify(pid).unwrap().is_some_and(|process| process.is_alive().unwrap())
}

#[test]
fn codes_signals_output_and_environment_are_recorded_exactly() {
    let (case, exit) = Case::run("echo out; echo err >&2; env | sort; exit 7");
    assert_eq!(exit.how, How::Code(7));
    assert!(exit.started_at.unwrap() <= exit.finished_at);
    let log = case.log();
    assert!(log.contains(&"stdout F out".to_owned()) && log.contains(&"stderr F err".to_owned()), "{log:?}");
    let names: Vec<&str> = log
        .iter()
        .filter_map(|line| line.strip_prefix("stdout F ")?.split_once('='))
        .map(|(name, _)| name)
        .collect();
    // The shell itself adds the last two.
    assert_eq!(names, ["PATH", "PWD", "ROOT"]);
    assert!(exit.message.contains("err"), "the log is the message of a failure: {:?}", exit.message);

    let (_case, exit) = Case::run("kill -9 $$");
    assert_eq!(exit.how, How::Signal(9));
    let (_case, exit) = Case::run("printf done >$ROOT/message; exit 1");
    assert_eq!((exit.how, exit.message.as_str()), (How::Code(1), "done"));
    let (_case, exit) = Case::run("echo only output");
    assert_eq!((exit.how, exit.message.as_str()), (How::Code(0), ""));
}

#[test]
fn a_container_gives_way_to_its_node_and_the_shim_does_not() {
    let niceness = |process: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(16).unwrap().parse::<i32>().unwrap()
    };
    let mut case = Case::new();
    case.prepare(&case.launch("echo ready >\"$ROOT/ready\"; sleep 60"));
    let shim = case.spawn();
    let (_, main) = case.running();
    case.file("ready");
    let own = niceness("self");
    assert_eq!(niceness(&shim.to_string()), own);
    assert_eq!(niceness(&main.pid.to_string()), (own + 5).min(19));
    main.signal(Signal::KILL).unwrap();
    case.exit();
}

#[test]
fn a_program_that_cannot_be_started_is_said_so() {
    let mut case = Case::new();
    let launch = Launch { program: "/no/such/program".into(), argv0: "thing".into(), ..case.launch("") };
    case.prepare(&launch);
    case.spawn();
    let exit = case.exit();
    assert_eq!(exit.how, How::NotStarted);
    assert!(exit.message.contains("could not start \"thing\""), "{}", exit.message);
    assert!(case.attempt.launch().unwrap().is_none(), "secrets go in every case");
}

#[test]
fn the_exit_is_recorded_only_when_no_descendant_remains() {
    // A daemon as daemons are made: two forks and a session of its own.
    let (case, exit) = Case::run(
        "setsid sh -c 'sh -c \"echo \\$\\$ >$ROOT/pid; exec sleep 600\" & exit 0'; while ! test -s $ROOT/pid; do :; done; exit 3",
    );
    assert_eq!(exit.how, How::Code(3));
    assert!(!alive(&case.file("pid")));
}

#[test]
fn secrets_are_in_no_argument_and_the_launch_file_goes_once_the_child_runs() {
    let mut case = Case::new();
    let mut launch = case.launch("echo ready >$ROOT/ready; exec sleep 600");
    launch.env.push(("TOKEN".into(), "swordfish".into()));
    case.prepare(&launch);
    let shim = case.spawn();
    case.running();
    case.file("ready");
    until("the launch file is gone", || case.attempt.launch().unwrap().is_none().then_some(()));
    let arguments = std::fs::read(format!("/proc/{shim}/cmdline")).unwrap();
    let environment = std::fs::read(format!("/proc/{shim}/environ")).unwrap();
    for place in [arguments, environment] {
        assert!(!String::from_utf8_lossy(&place).contains("swordfish"));
    }
}

#[test]
fn term_reaches_the_main_process_alone_and_usr1_kills_everything() {
    let mut case = Case::new();
    case.prepare(&case.launch(
        "trap 'echo told >$ROOT/told' TERM; (trap 'echo child >$ROOT/child' TERM; echo $$ >$ROOT/up; while :; do sleep 0.01; done) & \
         while :; do sleep 0.01; done",
    ));
    case.spawn();
    let (shim, main) = case.running();
    case.file("up");
    main.signal(Signal::TERM).unwrap();
    case.file("told");
    assert!(main.is_alive().unwrap(), "it chose to stay");
    assert!(!case.path("child").exists(), "only the main process is told");
    shim.signal(Signal::USR1).unwrap();
    assert_eq!(case.exit().how, How::Signal(9));
    let table = process::table().unwrap();
    assert!(process::descendants(&table, shim.pid).is_empty());
}

#[test]
fn a_second_shim_for_the_same_attempt_refuses_while_it_runs_and_after() {
    let mut case = Case::new();
    case.prepare(&case.launch("echo x >>$ROOT/starts; while ! test -e $ROOT/go; do sleep 0.01; done"));
    case.spawn();
    case.running();
    case.file("starts");
    case.spawn();
    let refused = case.shims.pop().unwrap().wait_with_output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("nothing is started twice"));
    std::fs::write(case.path("go"), "").unwrap();
    assert_eq!(case.exit().how, How::Code(0));
    case.spawn();
    assert!(!case.shims.pop().unwrap().wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(case.path("starts")).unwrap(), "x\n");
}

#[test]
fn two_shims_at_once_start_one_child() {
    let mut case = Case::new();
    case.prepare(&case.launch("echo x >>$ROOT/starts; exit 0"));
    case.spawn();
    case.spawn();
    case.spawn();
    case.exit();
    for mut shim in std::mem::take(&mut case.shims) {
        shim.wait().unwrap();
    }
    assert_eq!(std::fs::read_to_string(case.path("starts")).unwrap(), "x\n");
}

#[test]
fn a_killed_shim_leaves_an_attempt_that_is_lost_and_never_launched_again() {
    let mut case = Case::new();
    case.prepare(&case.launch("echo $$ >$ROOT/pid; exec sleep 600"));
    case.spawn();
    let (shim, main) = case.running();
    case.file("pid");
    shim.signal(Signal::KILL).unwrap();
    case.shims.pop().unwrap().wait().unwrap();
    let Some(Attempt::Lost { state }) = case.attempt.observe().unwrap() else { panic!("it is lost") };
    assert_eq!(state.main.unwrap().process, main);
    assert!(main.is_alive().unwrap(), "the container itself still runs, and the record finds it");
    case.spawn();
    assert!(!case.shims.pop().unwrap().wait().unwrap().success());
    main.signal(Signal::KILL).unwrap();
    until("it is dead", || (!main.is_alive().unwrap()).then_some(()));
}

#[test]
fn the_death_of_whoever_started_the_shim_changes_nothing() {
    let case = Case::new();
    case.prepare(&case.launch("while ! test -e $ROOT/go; do sleep 0.01; done; echo survived; exit 5"));
    // A node that starts a shim and is killed with its whole process group.
    let mut node = Command::new("/bin/sh")
        .args(["-c", "\"$0\" shim \"$1\" & wait", env!("CARGO_BIN_EXE_terrane-node")])
        .arg(case.attempt.path())
        .process_group(0)
        .spawn()
        .unwrap();
    let (shim, main) = case.running();
    let group = rustix::process::Pid::from_raw(node.id() as i32).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    node.wait().unwrap();
    assert!(shim.is_alive().unwrap() && main.is_alive().unwrap());
    assert!(matches!(case.attempt.observe().unwrap(), Some(Attempt::Running { .. })));
    std::fs::write(case.path("go"), "").unwrap();
    assert_eq!(case.exit().how, How::Code(5));
    assert!(case.log().contains(&"stdout F survived".to_owned()));
}

#[test]
fn a_user_of_its_own_has_no_groups_and_no_way_back() {
    let root = rustix::process::geteuid().is_root().then_some(());
    let Some(()) = found(Need::Root, root).unwrap() else { return };
    let mut case = Case::new();
    let launch = Launch {
        confinement: Confinement::User { id: 2_000_000_123 },
        env: vec![],
        ..case.launch("grep -E '^(Uid|Gid|Groups|NoNewPrivs|Cap...):' /proc/self/status; umask")
    };
    case.prepare(&launch);
    case.spawn();
    assert_eq!(case.exit().how, How::Code(0));
    let log: Vec<String> =
        case.log().iter().map(|line| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        log,
        [
            "Uid: 2000000123 2000000123 2000000123 2000000123",
            "Gid: 2000000123 2000000123 2000000123 2000000123",
            "Groups:",
            "CapInh: 0000000000000000",
            "CapPrm: 0000000000000000",
            "CapEff: 0000000000000000",
            "CapBnd: 0000000000000000",
            "CapAmb: 0000000000000000",
            "NoNewPrivs: 1",
            "0027",
        ]
    );
}

#[test]
fn landlock_keeps_a_container_in_its_directory() {
    let landlock = (Isolation::detect_without_root() == Isolation::Landlock).then_some(());
    let Some(()) = found(Need::Landlock, landlock).unwrap() else { return };
    let mut case = Case::new();
    let own = case.path("own");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(case.path("secret"), "no").unwrap();
    let script = "cd \"$ROOT/own\" && echo mine >file && cat file; cat ../secret || echo refused; \
                  echo x >../new || echo refused; cat /usr/bin/env >/dev/null && echo system; \
                  kill -0 $PPID 2>/dev/null || echo no signal; cat /proc/$PPID/environ >/dev/null 2>&1 || echo no peeking; \
                  grep -E '^Cap(Prm|Eff|Bnd):.*[1-9a-f]' /proc/self/status || echo no capability";
    let launch = Launch {
        confinement: Confinement::Landlock {
            read: readable([], &[Path::new("/nowhere")]),
            write: vec![own.clone()],
        },
        directory: own,
        ..case.launch(script)
    };
    case.prepare(&launch);
    case.spawn();
    case.exit();
    let out: Vec<String> =
        case.log().iter().filter_map(|line| line.strip_prefix("stdout F ").map(str::to_owned)).collect();
    let mut expected = vec!["mine", "refused", "refused", "system", "no signal", "no peeking"];
    // An ordinary user has none in force; what it could still gain by programs of root is barred by no_new_privs.
    expected.extend(rustix::process::geteuid().is_root().then_some("no capability"));
    let out: Vec<&str> = out.iter().map(String::as_str).take(expected.len()).collect();
    assert_eq!(out, expected, "{:?}", case.log());
    assert!(!case.path("new").exists());
}
