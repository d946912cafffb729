//! `cargo suite`: every test of the workspace, several programs at once.
//!
//! `cargo test` runs one program after another, and most of them wait rather than compute: for a server, a tool, a watch. Two
//! at a time keep two cores busy. What a program prints is shown when it failed, and else only that it passed.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The programs that take longest, in this order. They start first, or the last of them would run alone.
const LONGEST: [&str; 6] = ["crash", "machine", "real", "kubectl", "doors", "runs"];

const USAGE: &str = "\
Usage: cargo suite [PROGRAM...]

Builds every test program of the workspace and runs them, one for each core at a time.
With names, such as `crash` or `doors`, it runs only those. `cargo test` works as well, one program after another.";

/// One test program.
#[derive(Debug)]
struct Program {
    /// Crate and target, as a person would look for it.
    name: String,
    target: String,
    executable: PathBuf,
    arguments: Vec<String>,
    /// Where cargo would run it.
    directory: PathBuf,
}

#[derive(Debug)]
struct Ended {
    name: String,
    passed: bool,
    tests: Tests,
    took: Duration,
    output: PathBuf,
}

fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.iter().any(|word| word.starts_with('-')) {
        println!("{USAGE}");
        return Ok(());
    }
    let start = Instant::now();
    refuse_examples()?;
    let mut programs = build()?;
    println!("built {} test programs in {}", programs.len(), seconds(start.elapsed()));
    if !wanted.is_empty() {
        programs.retain(|program| wanted.contains(&program.target));
        ensure!(!programs.is_empty(), "no test program is called {}", wanted.join(" or "));
    }
    programs.sort_by_key(|program| {
        LONGEST.iter().position(|name| *name == program.target).unwrap_or(LONGEST.len())
    });
    let outputs = tempdir()?;
    let jobs = thread::available_parallelism().map_or(2, NonZero::get);
    let ended = run_all(programs, jobs, &outputs)?;
    let failed: Vec<&str> =
        ended.iter().filter(|program| !program.passed).map(|program| program.name.as_str()).collect();
    let tests = ended.iter().map(|program| program.tests).fold(Tests::default(), Tests::and);
    println!("{} passed, {} failed", tests.passed, tests.failed);
    if failed.is_empty() {
        fs::remove_dir_all(&outputs).context("removing what the programs printed")?;
        println!("{} programs, {} in all", ended.len(), seconds(start.elapsed()));
        return Ok(());
    }
    bail!(
        "{} of {} test programs failed: {}; what each printed is in {}",
        failed.len(),
        ended.len(),
        failed.join(", "),
        outputs.display()
    )
}

/// Builds every test program and says where each is.
fn build() -> Result<Vec<Program>> {
    let mut cargo = Command::new(env!("CARGO"))
        .args(["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cargo")?;
    let output = cargo.stdout.take().context("cargo has no output")?;
    let mut programs = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.context("reading what cargo says")?;
        let message: Value = serde_json::from_str(&line).context("reading what cargo says")?;
        programs.extend(program(&message));
    }
    ensure!(cargo.wait().context("waiting for cargo")?.success(), "the tests do not build");
    Ok(programs)
}

/// The test program that a message of cargo is about, if it is about one.
fn program(message: &Value) -> Option<Program> {
    let is_test = message.pointer("/profile/test").and_then(Value::as_bool) == Some(true);
    let text = |place: &str| message.pointer(place).and_then(Value::as_str);
    let executable = text("/executable").filter(|_| is_test)?;
    let directory = Path::new(text("/manifest_path")?).parent()?;
    let (package, target) = (directory.file_name()?.to_str()?, text("/target/name")?);
    let name = if package == target { package.to_owned() } else { format!("{package}/{target}") };
    Some(Program {
        name,
        target: target.to_owned(),
        executable: executable.into(),
        arguments: Vec::new(),
        directory: directory.to_owned(),
    })
}

/// Examples in the documentation would not be run: cargo takes minutes to look for them in all crates, and an internal crate has tests.
fn refuse_examples() -> Result<()> {
    for entry in fs::read_dir("crates").context("reading the directory of crates")? {
        let source = entry.context("reading a directory")?.path().join("src");
        ensure!(
            !has_example(&source)?,
            "{} has an example in its documentation, which nothing runs: make it a test",
            source.display()
        );
    }
    Ok(())
}

/// Whether a file below the directory has a block of code that rustdoc would run. O(source text).
fn has_example(directory: &Path) -> Result<bool> {
    for entry in fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))? {
        let path = entry.context("reading a directory")?.path();
        let found = if path.is_dir() {
            has_example(&path)?
        } else {
            path.extension().is_some_and(|extension| extension == "rs")
                && opens_example(
                    &fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?,
                )
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Blocks open and close with the same sign; one that says `text` is none.
fn opens_example(source: &str) -> bool {
    let mut within = false;
    for line in source.lines() {
        let comment = line.trim_start();
        let Some(words) = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!")) else {
            continue;
        };
        let Some(kind) = words.trim_start().strip_prefix("```") else { continue };
        if !within && kind != "text" {
            return true;
        }
        within = !within;
    }
    false
}

fn tempdir() -> Result<PathBuf> {
    let directory = std::env::temp_dir().join(format!("terrane-tests-{}", std::process::id()));
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    Ok(directory)
}

/// Runs the programs, `jobs` at a time, and tells of each when it has ended.
fn run_all(programs: Vec<Program>, jobs: usize, outputs: &Path) -> Result<Vec<Ended>> {
    let total = programs.len();
    let waiting = Mutex::new(VecDeque::from(programs));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs {
            let sender = sender.clone();
            scope.spawn(|| {
                let sender = sender;
                while let Some(program) = next() {
                    if sender.send(run_one(&program, outputs)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut all = Vec::new();
        for ended in receiver {
            let ended = ended?;
            all.push(ended);
            if let Some(ended) = all.last() {
                tell(ended, all.len(), total)?;
            }
        }
        Ok(all)
    })
}

fn run_one(program: &Program, outputs: &Path) -> Result<Ended> {
    let output = outputs.join(program.name.replace('/', "-") + ".log");
    let file = fs::File::create(&output).with_context(|| format!("making {}", output.display()))?;
    let start = Instant::now();
    let status = Command::new(&program.executable)
        .args(&program.arguments)
        .current_dir(&program.directory)
        .env("CARGO_MANIFEST_DIR", &program.directory)
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("sharing a file")?)
        .stderr(file)
        .status()
        .with_context(|| format!("starting {}", program.name))?;
    let printed = fs::read(&output).with_context(|| format!("reading {}", output.display()))?;
    let tests = Tests::told(&String::from_utf8_lossy(&printed));
    Ok(Ended { name: program.name.clone(), passed: status.success(), tests, took: start.elapsed(), output })
}

/// How many tests a program told of.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tests {
    passed: usize,
    failed: usize,
}

impl Tests {
    /// The sum over all lines like `test result: ok. 12 passed; 0 failed; …`.
    fn told(printed: &str) -> Self {
        let results = printed.lines().filter_map(|line| line.strip_prefix("test result: ")?.split_once(". "));
        results
            .map(|(_, counts)| Self { passed: count(counts, "passed"), failed: count(counts, "failed") })
            .fold(Self::default(), Self::and)
    }

    fn and(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

/// The number before a word in `12 passed; 0 failed; …`.
fn count(counts: &str, word: &str) -> usize {
    let number = |part: &str| part.trim().strip_suffix(word)?.trim().parse().ok();
    counts.split(';').find_map(number).unwrap_or(0)
}

fn tell(ended: &Ended, count: usize, total: usize) -> Result<()> {
    let Ended { name, passed, tests, took, output } = ended;
    if *passed {
        if tests.passed > 0 {
            println!("[{count}/{total}] {name}: {} passed in {}", tests.passed, seconds(*took));
        }
        return Ok(());
    }
    let printed = fs::read(output).with_context(|| format!("reading {}", output.display()))?;
    println!("{}", String::from_utf8_lossy(&printed));
    println!("[{count}/{total}] {name}: FAILED after {}", seconds(*took));
    Ok(())
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tests_are_counted_over_all_results() {
        let printed = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\
                       test result: FAILED. 3 passed; 1 failed; 0 ignored\ntest result: what\n";
        assert_eq!(Tests::told(printed), Tests { passed: 5, failed: 1 });
    }

    #[test]
    fn an_example_is_told_from_a_drawing() {
        assert!(opens_example("/// Says so.\n///\n/// ```\n/// f();\n/// ```\n"));
        assert!(opens_example("//! ```text\n//! a -> b\n//! ```\n//! ```no_run\n"));
        assert!(!opens_example("//! ```text\n//! a -> b\n//! ```\nlet text = \"```\";\n"));
    }

    #[test]
    fn only_test_programs_are_run() {
        let message = |test: bool, executable: Value| {
            json!({
                "reason": "compiler-artifact", "manifest_path": "/code/crates/engine/Cargo.toml",
                "target": {"name": "layer"}, "profile": {"test": test}, "executable": executable,
            })
        };
        let found = program(&message(true, json!("/code/target/layer-1"))).unwrap();
        assert_eq!((found.name.as_str(), found.target.as_str()), ("engine/layer", "layer"));
        assert_eq!(found.directory, Path::new("/code/crates/engine"));
        assert!(program(&message(false, json!("/code/target/layer"))).is_none());
        assert!(program(&message(true, Value::Null)).is_none());
    }

    #[test]
    fn a_program_that_fails_is_told_apart_and_its_output_kept() {
        let outputs = tempdir().unwrap();
        let script = |name: &str, text: &'static str| Program {
            name: name.into(),
            target: name.into(),
            executable: "/bin/sh".into(),
            arguments: vec!["-c".to_owned(), text.to_owned()],
            directory: "/".into(),
        };
        let good = script("good", "echo 'test result: ok. 4 passed; 0 failed'");
        let bad = script("bad", "echo why; exit 101");
        let mut ended = run_all(vec![good, bad], 2, &outputs).unwrap();
        ended.sort_by(|a, b| a.name.cmp(&b.name));
        let told: Vec<_> =
            ended.iter().map(|ended| (ended.name.as_str(), ended.passed, ended.tests.passed)).collect();
        assert_eq!(told, [("bad", false, 0), ("good", true, 4)]);
        assert_eq!(fs::read_to_string(outputs.join("bad.log")).unwrap(), "why\n");
        fs::remove_dir_all(outputs).unwrap();
    }
}
