//! Which arguments the tool can be given more. The list is closed: what is not on it would break a promise, such as that what was approved
//! is what is applied, that a plan is about all of the code, or that no secret stands in an argument.

use crate::text::ToolArgument;

/// A command of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Init,
    Plan,
    Apply,
}

impl Command {
    const fn as_str(self) -> &'static str {
        match self {
            Command::Init => "init",
            Command::Plan => "plan",
            Command::Apply => "apply",
        }
    }

    const fn known(self) -> &'static [&'static str] {
        match self {
            Command::Init => &["-upgrade", "-lockfile=readonly"],
            Command::Plan | Command::Apply => &["-parallelism=NUMBER", "-compact-warnings", "-concise"],
        }
    }
}

/// More work at the same time than any provider lets be done.
const MOST_PARALLEL: u16 = 256;

/// Why the argument cannot be given to the command, and what to do instead.
pub(super) fn check(command: Command, argument: &ToolArgument) -> Result<(), String> {
    let (name, value) = argument.parts();
    let fits = match (command, name, value) {
        (Command::Init, "upgrade", None) | (Command::Init, "lockfile", Some("readonly")) => true,
        (Command::Plan | Command::Apply, "compact-warnings" | "concise", None) => true,
        (Command::Plan | Command::Apply, "parallelism", Some(number)) => {
            number.parse::<u16>().is_ok_and(|number| (1..=MOST_PARALLEL).contains(&number))
        }
        _ => false,
    };
    if fits {
        return Ok(());
    }
    let known = command.known().join(", ");
    let instead = match name {
        "var" => "; variables of the layer are given by spec.variables",
        "var-file" => "; files with variables are named by spec.variableFiles",
        "backend-config" | "backend" | "reconfigure" | "migrate-state" | "force-copy" => {
            "; the state's place is said by spec.backend"
        }
        "target" | "exclude" | "replace" => {
            "; a layer is planned whole, or others could not tell what it is in sync with"
        }
        "refresh" | "refresh-only" => {
            "; drift would not be found; spec.drift says how the world is looked at"
        }
        "destroy" => "; a layer is destroyed by deleting it with deletionPolicy Destroy",
        "lock" | "lock-timeout" => {
            "; Terrane holds the lock of the state, and tries again where another has it"
        }
        "auto-approve" => "; an apply applies the plan that was approved",
        _ => "",
    };
    Err(format!("{} {argument} is not one of those that can be given ({known}){instead}", command.as_str()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn words(command: Command, argument: &str) -> Option<String> {
        check(command, &ToolArgument::new(argument).unwrap()).err()
    }

    #[test]
    fn the_list_is_closed_and_a_refusal_says_what_to_use_instead() {
        for (command, argument) in [
            (Command::Init, "-upgrade"),
            (Command::Init, "--upgrade"),
            (Command::Init, "-lockfile=readonly"),
            (Command::Plan, "-parallelism=1"),
            (Command::Plan, "-parallelism=256"),
            (Command::Plan, "--compact-warnings"),
            (Command::Apply, "-concise"),
        ] {
            assert_eq!(words(command, argument), None, "{argument}");
        }
        for (command, argument, instead) in [
            (Command::Init, "-backend-config=password=x", "spec.backend"),
            (Command::Init, "-lockfile=ignore", "-lockfile=readonly"),
            (Command::Init, "-upgrade=true", "-upgrade"),
            (Command::Init, "-plugin-dir=/tmp", "-upgrade"),
            (Command::Init, "-from-module=x", "-upgrade"),
            (Command::Init, "-parallelism=1", "-upgrade"),
            (Command::Plan, "-out=/tmp/x", "-parallelism"),
            (Command::Plan, "-parallelism=0", "-parallelism"),
            (Command::Plan, "-parallelism=257", "-parallelism"),
            (Command::Plan, "-parallelism=1x", "-parallelism"),
            (Command::Plan, "-parallelism", "-parallelism"),
            (Command::Plan, "-var=a=b", "spec.variables"),
            (Command::Plan, "-var-file=a", "spec.variableFiles"),
            (Command::Plan, "-target=a", "planned whole"),
            (Command::Plan, "-exclude=a", "planned whole"),
            (Command::Plan, "-replace=a", "planned whole"),
            (Command::Plan, "-refresh=false", "drift"),
            (Command::Plan, "-refresh-only", "drift"),
            (Command::Plan, "-destroy", "deletionPolicy"),
            (Command::Plan, "-lock=false", "lock"),
            (Command::Plan, "-state=x", "-parallelism"),
            (Command::Plan, "-json", "-parallelism"),
            (Command::Plan, "-input=true", "-parallelism"),
            (Command::Plan, "-generate-config-out=x", "-parallelism"),
            (Command::Apply, "-auto-approve", "approved"),
            (Command::Apply, "-chdir=/", "-parallelism"),
            (Command::Apply, "-upgrade", "-parallelism"),
        ] {
            let told = words(command, argument).unwrap();
            assert!(told.contains(instead), "{told}");
        }
    }

    #[test]
    fn an_argument_is_one_word_that_begins_with_a_dash() {
        for wrong in ["", "x", "-", "--", "-=x", "-UP", "-a b", "-a=b c", "-a\n", "-out /x", "plan", "-a=ü"]
        {
            assert!(ToolArgument::new(wrong).is_err(), "{wrong:?}");
        }
    }
}
