//! What repositories and layers may ask of their runners, as the administrator says it by flags.

use api::overrides::Allowed;
use clap::Args;

#[derive(Args, Debug, Clone, Default)]
pub(crate) struct RunnerOverrides {
    /// Let repositories and layers ask this of their runners by overrideRunnerSpec: a field, or FIELD=PATTERN,PATTERN for some of its values,
    /// in which `*` stands for anything but a slash and `**` for anything. May be given several times; with it nothing else is allowed, and
    /// `none` allows nothing [default: what gives a run no rights that it has not, see docs/runner-pods.md]
    #[arg(long = "allow-runner-override", value_name = "FIELD[=PATTERN,...]", value_parser = checked)]
    pub allowed: Vec<String>,
}

fn checked(words: &str) -> Result<String, String> {
    Allowed::only([words]).map(|_| words.to_owned())
}

impl RunnerOverrides {
    pub(crate) fn read(&self) -> anyhow::Result<Allowed> {
        if self.allowed.is_empty() {
            return Ok(Allowed::default());
        }
        Allowed::only(self.allowed.iter().map(String::as_str)).map_err(anyhow::Error::msg)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nothing_said_is_the_default_and_what_is_said_is_all() {
        let of = |words: &[&str]| {
            let allowed = words.iter().map(|word| (*word).to_owned()).collect();
            RunnerOverrides { allowed }.read().unwrap()
        };
        assert_eq!(of(&[]), Allowed::default());
        assert_eq!(of(&["none"]), Allowed::only([]).unwrap());
        assert_eq!(of(&["env", "image=a/*"]), Allowed::only(["image=a/*", "env"]).unwrap());
        assert!(checked("image").is_err() && checked("hostNetwork").is_err());
    }
}
