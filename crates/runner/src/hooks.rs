//! Commands of the layer's own around the tool's: what they are told, how long they may take, and what becomes of what they print.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::attempt::Reason;
use api::hooks::{ArgumentFrom, HOOK_TIMEOUT, Hook, Moment};
use api::text::OutputName;
use serde_json::{Value, json};
use tofu::process::{self, Ended, Stream, Surroundings, Wish};
use tokio::sync::watch;

use crate::attempt::{Ready, Work};
use crate::ending::{Ending, Step, disk, how};
use crate::inputs::write_private;

/// What reads a text that does not say what reads it.
const SHELL: &str = "/bin/sh";
/// What of an output stands in a status, which every reader of the layer gets each time.
const OUTPUT_LIMIT: usize = 8 * 1024;
/// The longest last line of a script that outputs are read from.
const LINE_LIMIT: usize = 32 * 1024;
/// How long a hook may take to stop. A script has the time that the tool has.
const HOOK_GRACE: Duration = Duration::from_secs(30);
/// What a file begins with that is a program itself.
const PROGRAM: &[u8] = b"\x7fELF";
/// The longest first line that says what reads the rest.
const BEGINNING: u64 = 4096;
/// Where commands find the tool of the attempt by its name.
const PROGRAMS: &str = "bin";

/// A command with its text, wherever that came from.
#[derive(Debug, Clone)]
pub(crate) struct Command {
    pub(crate) text: Text,
    pub(crate) arguments: Vec<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) arguments_from: Vec<ArgumentFrom>,
    pub(crate) output_to: Option<OutputName>,
    /// The attempt goes on whatever comes of it.
    pub(crate) optional: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Text {
    Here(Vec<u8>),
    /// Relative to the repository's root.
    File(api::text::LayerPath),
}

impl Command {
    pub(crate) fn of_hook(hook: &Hook, text: Text) -> Self {
        let timeout = Some(hook.timeout.unwrap_or(HOOK_TIMEOUT).get());
        Self {
            text,
            arguments: hook.args.clone(),
            timeout,
            arguments_from: hook.args_from.clone(),
            output_to: hook.output_to.clone(),
            optional: hook.optional,
        }
    }
}

/// What a command came to.
pub(crate) struct Said {
    pub(crate) ended: Ended,
    /// It was stopped because it took longer than this.
    pub(crate) overdue: Option<Duration>,
    out: String,
    /// The last line that says something, or how long it is where that is too long to be kept.
    pub(crate) last: Result<String, usize>,
}

impl Work<'_> {
    /// Runs the hooks of a moment one after the other; the first that fails ends the attempt.
    pub(crate) async fn hooks(&self, moment: Moment, ready: &Ready, outputs: &mut Outputs) -> Step<()> {
        let hooks = self.own.hooks.get(&moment).map_or(&[][..], Vec::as_slice);
        for (index, hook) in hooks.iter().enumerate() {
            let name = if hooks.len() == 1 { moment.to_string() } else { format!("{moment} {}", index + 1) };
            let came = self.hook(hook, moment, &name, &format!("{moment}-{index}"), ready).await;
            let kept = match came {
                Ok(kept) => kept,
                Err(ending) if hook.optional => Err(ending.message),
                Err(ending) => return Err(ending),
            };
            let Some(to) = &hook.output_to else { continue };
            match kept {
                Ok(mut value) => {
                    self.log.mask().json(&mut value);
                    outputs.insert(to.to_string(), value);
                }
                Err(why) => {
                    self.log.line(&format!("What hook {name} printed is not kept as {to}: {why}."));
                    if hook.optional {
                        outputs.insert(to.to_string(), json!({ "failed": self.log.mask().line(&why) }));
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs one hook to its end: the object that it printed, or why that is none.
    async fn hook(
        &self,
        hook: &Command,
        moment: Moment,
        name: &str,
        file: &str,
        ready: &Ready,
    ) -> Step<Result<Value, String>> {
        let done = match moment {
            Moment::AfterApply | Moment::AfterDestroy => "; what was done before it stays",
            Moment::BeforeInit
            | Moment::AfterInit
            | Moment::BeforePlan
            | Moment::AfterPlan
            | Moment::BeforeApply
            | Moment::BeforeDestroy => "",
        };
        if *self.surroundings.stop.borrow() == Wish::Stop {
            let words = format!("the attempt was stopped before hook {name}{done}");
            return Err(Ending::failed(Reason::Interrupted, words));
        }
        self.log.line(&format!("Hook {name}:"));
        let mut surroundings = self.told(moment.as_str(), ready)?;
        surroundings.grace = surroundings.grace.min(HOOK_GRACE);
        let said = self.command(hook, file, ready, surroundings, Reason::HookFailed).await?;
        if let Some(words) = failure(&said) {
            let reason = if said.ended.interrupted && said.overdue.is_none() {
                Reason::Interrupted
            } else {
                Reason::HookFailed
            };
            return Err(Ending::failed(reason, format!("hook {name} {words}{done}; the log says more")));
        }
        Ok(output(&said.out))
    }

    /// What a command is called with by what its environment has. Arguments can be seen by others: no secret becomes one.
    fn arguments_from(&self, command: &Command, surroundings: &Surroundings) -> Vec<OsString> {
        let mut arguments = Vec::new();
        for ArgumentFrom { name, variable } in &command.arguments_from {
            let mut known = surroundings.environment.iter().rev();
            let value = known.find(|(known, _)| known == variable.as_str()).map(|(_, value)| value);
            match value {
                None => self.log.line(&format!("--{name} is left out: there is no variable {variable}.")),
                Some(value) if value.to_str().is_none_or(|text| self.log.mask().line(text) != text) => {
                    self.log
                        .line(&format!("--{name} is left out: {variable} holds a secret; read it there."));
                }
                Some(value) => arguments.extend([OsString::from(format!("--{name}")), value.clone()]),
            }
        }
        arguments
    }

    /// Runs one command to its end, in the layer's directory.
    pub(crate) async fn command(
        &self,
        command: &Command,
        name: &str,
        ready: &Ready,
        surroundings: Surroundings,
        unstarted: Reason,
    ) -> Step<Said> {
        let (file, text) = match &command.text {
            Text::Here(text) => {
                let file = self.places.private.join(name);
                write_private(&file, text).map_err(disk)?;
                (file, text.clone())
            }
            Text::File(path) => {
                let file = match &self.image {
                    Some(image) => image.find(Path::new(path.trimmed())),
                    None => Some(self.places.source.join(path.trimmed())),
                };
                let found = file.and_then(|file| Some((beginning(&file).ok()?, file)));
                let (text, file) = found.ok_or_else(|| self.unreadable(path, name))?;
                (file, text)
            }
        };
        let (program, mut arguments) = if text.starts_with(PROGRAM) {
            (file, Vec::new())
        } else {
            let (program, mut arguments) = reader(&text);
            arguments.push(file.into());
            (self.at_hand(program), arguments)
        };
        arguments.extend(command.arguments.iter().map(OsString::from));
        arguments.extend(self.arguments_from(command, &surroundings));
        let mut out = String::new();
        let mut last = Ok(String::new());
        let mut lines = |stream: Stream, line: &str| {
            self.log.line(line);
            if stream == Stream::Out && !line.trim().is_empty() {
                last =
                    if line.len() > LINE_LIMIT { Err(line.len()) } else { Ok(uncoloured(line).to_owned()) };
            }
            if stream == Stream::Out && out.len() <= OUTPUT_LIMIT {
                out.push_str(line);
                out.push('\n');
            }
        };
        let (ended, overdue) =
            run(&program, &arguments, &ready.dir, surroundings, command.timeout, &mut lines)
                .await
                .map_err(|error| Ending::failed(unstarted, format!("{name}: {error}")))?;
        Ok(Said { ended, overdue, out, last })
    }

    fn unreadable(&self, path: &api::text::LayerPath, name: &str) -> Ending {
        Ending::bad_input(match &self.description.image {
            Some(image) => format!(
                "{path} cannot be read in the working directory or the root of image {image}; correct the path of {name}, or build the image with it"
            ),
            None => format!(
                "{path} cannot be read at commit {}; correct the path of {name}, or push the missing file",
                self.description.revision.short()
            ),
        })
    }

    /// What reads a script: this machine's, and where it has none, the image's own.
    fn at_hand(&self, program: PathBuf) -> PathBuf {
        let own = self.image.as_ref().filter(|_| !program.exists()).and_then(|image| image.find(&program));
        own.unwrap_or(program)
    }

    /// What a command finds in its environment beside what the tool finds in its own.
    pub(crate) fn told(&self, what: &str, ready: &Ready) -> Step<Surroundings> {
        let mut surroundings = ready.surroundings.clone();
        let programs = self.places.private.join(PROGRAMS);
        link_programs(&programs, ready).map_err(disk)?;
        let known = surroundings.environment.iter().rev().find(|(name, _)| name == "PATH");
        let rest = known.map(|(_, value)| value.clone()).unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&rest)));
        let description = self.description;
        let told: [(&str, OsString); 10] = [
            ("PATH", path.unwrap_or(rest)),
            ("TERRANE_STEP", what.into()),
            ("TERRANE_ACTION", description.action.as_str().into()),
            ("TERRANE_MODE", description.mode.as_str().into()),
            ("TERRANE_NAMESPACE", description.namespace.clone().into()),
            ("TERRANE_LAYER", description.layer.clone().into()),
            ("TERRANE_RUN", description.run.clone().into()),
            ("TERRANE_REVISION", description.revision.to_string().into()),
            ("TERRANE_TOOL", ready.tool.path.clone().into()),
            ("TERRANE_PLAN_FILE", self.places.plan().into()),
        ];
        let root = self.image.as_ref().map(|_| ("TERRANE_IMAGE_ROOT", self.places.source.clone().into()));
        let told = told.into_iter().chain(root);
        surroundings.environment.extend(told.map(|(name, value)| (OsString::from(name), value)));
        Ok(surroundings)
    }
}

/// As much of a file as says what reads it.
fn beginning(file: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::new();
    std::fs::File::open(file)?.take(BEGINNING).read_to_end(&mut text)?;
    Ok(text)
}

/// The tool of the attempt, and what runs it, under the names that people call them by.
fn link_programs(directory: &Path, ready: &Ready) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let tool = (ready.tool.kind.program(), &ready.tool.path);
    let wrapper = ready.tool.wrapper.as_ref().map(|terragrunt| ("terragrunt", &terragrunt.path));
    for (name, program) in std::iter::once(tool).chain(wrapper) {
        let link = directory.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(program, link)?;
        }
    }
    Ok(())
}

/// By the name that the layer gives them.
pub(crate) type Outputs = BTreeMap<String, Value>;

/// Runs a program until it ends, somebody asks to stop, or its time is up. One that took too long is asked to stop as well.
async fn run(
    program: &Path,
    arguments: &[OsString],
    dir: &Path,
    surroundings: Surroundings,
    timeout: Option<Duration>,
    lines: process::Lines<'_>,
) -> Result<(Ended, Option<Duration>), process::Error> {
    let Some(timeout) = timeout else {
        return Ok((process::run(program, arguments, dir, &surroundings, lines).await?, None));
    };
    let (wish, stop) = watch::channel(Wish::GoOn);
    let mut asked = surroundings.stop.clone();
    let surroundings = Surroundings { stop, ..surroundings };
    let mut running = std::pin::pin!(process::run(program, arguments, dir, &surroundings, lines));
    let asked = async {
        if asked.wait_for(|wish| *wish == Wish::Stop).await.is_err() {
            // Whoever could ask is gone: nobody will.
            std::future::pending::<()>().await;
        }
    };
    let overdue = tokio::select! {
        ended = &mut running => return Ok((ended?, None)),
        () = asked => None,
        () = tokio::time::sleep(timeout) => Some(timeout),
    };
    wish.send_replace(Wish::Stop);
    Ok((running.await?, overdue))
}

/// The program that reads a text, and its argument, as the kernel would find them; the file needs no right to be executed.
fn reader(text: &[u8]) -> (PathBuf, Vec<OsString>) {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let said = std::str::from_utf8(line).ok().and_then(|line| line.strip_prefix("#!")).map(str::trim);
    match said.filter(|said| said.starts_with('/')) {
        None => (PathBuf::from(SHELL), Vec::new()),
        Some(said) => {
            let (program, rest) = said.split_once([' ', '\t']).unwrap_or((said, ""));
            let rest = rest.trim();
            let argument = (!rest.is_empty()).then(|| OsString::from(rest));
            (PathBuf::from(program), argument.into_iter().collect())
        }
    }
}

/// Why it did not do what it should have.
pub(crate) fn failure(said: &Said) -> Option<String> {
    match (said.overdue, said.ended.code) {
        (Some(limit), _) => Some(format!("took longer than {limit:?} and was stopped")),
        (None, Some(0)) if !said.ended.interrupted => None,
        (None, _) if said.ended.interrupted => {
            Some(format!("was stopped; it ended with {}", how(&said.ended)))
        }
        (None, _) => Some(format!("failed with {}", how(&said.ended))),
    }
}

/// Without the colours at its beginning: what the tool prints last may be what ends its colours, and no new line.
fn uncoloured(line: &str) -> &str {
    let is_of_colour = |letter: char| letter.is_ascii_digit() || letter == ';';
    let mut rest = line;
    while let Some(after) = rest.strip_prefix("\u{1b}[") {
        let Some(after) = after.trim_start_matches(is_of_colour).strip_prefix('m') else { break };
        rest = after;
    }
    rest
}

/// The JSON object that was printed: all of it, or its last line.
fn output(text: &str) -> Result<Value, String> {
    if text.len() > OUTPUT_LIMIT {
        return Err(format!("it is larger than {OUTPUT_LIMIT} bytes"));
    }
    let last = text.trim_end().lines().next_back().unwrap_or_default();
    [text, uncoloured(last)]
        .into_iter()
        .find_map(|text| serde_json::from_str(text).ok().filter(Value::is_object))
        .ok_or_else(|| "neither the whole of it nor its last line is a JSON object".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_first_line_says_who_reads_the_rest() {
        let read = |text: &str| {
            let (program, arguments) = reader(text.as_bytes());
            let arguments: Vec<String> =
                arguments.into_iter().map(|one| one.into_string().unwrap()).collect();
            (program.display().to_string(), arguments)
        };
        assert_eq!(read("echo hello"), ("/bin/sh".to_owned(), vec![]));
        assert_eq!(read("#!/bin/bash\nx"), ("/bin/bash".to_owned(), vec![]));
        assert_eq!(
            read("#! /usr/bin/env -S python3 -u\n"),
            ("/usr/bin/env".to_owned(), vec!["-S python3 -u".to_owned()])
        );
        assert_eq!(read("#!relative\nx"), ("/bin/sh".to_owned(), vec![]));
        assert_eq!(read(""), ("/bin/sh".to_owned(), vec![]));
    }

    #[test]
    fn an_output_is_an_object_as_a_whole_or_in_its_last_line() {
        assert_eq!(output("{\n \"a\": 1\n}\n").unwrap(), json!({ "a": 1 }));
        assert_eq!(output("working\n{\"a\": [2]}\n\n").unwrap(), json!({ "a": [2] }));
        assert_eq!(output("done\n\u{1b}[0m\u{1b}[1;32m{\"a\": 3}").unwrap(), json!({ "a": 3 }));
        for wrong in ["", "hello", "[1]", "{\"a\": 1}\nand more"] {
            assert!(output(wrong).is_err(), "{wrong:?}");
        }
        let huge = format!("{{\"a\": \"{}\"}}", "x".repeat(OUTPUT_LIMIT));
        assert!(output(&huge).unwrap_err().contains("larger"));
    }

    #[tokio::test]
    async fn one_that_takes_too_long_is_stopped_and_one_that_does_not_is_not() {
        let (_keep, stop) = watch::channel(Wish::GoOn);
        let around = Surroundings {
            environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
            mark: format!("hooks-{}", std::process::id()),
            stop,
            grace: Duration::from_millis(200),
            whole: Default::default(),
        };
        let limited = async |script: &str, limit: Duration| {
            let arguments = ["-c".into(), script.into()];
            run(Path::new("/bin/sh"), &arguments, Path::new("/"), around.clone(), Some(limit), &mut |_, _| {})
                .await
                .unwrap()
        };
        let (ended, overdue) = limited("exit 3", Duration::from_secs(600)).await;
        assert_eq!((ended.code, overdue), (Some(3), None));
        let limit = Duration::from_millis(50);
        let (ended, overdue) = limited("trap '' INT; while :; do sleep 1000; done", limit).await;
        assert_eq!((ended.signal, overdue), (Some(9), Some(limit)));
    }
}
