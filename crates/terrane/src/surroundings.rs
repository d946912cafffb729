//! What Terraforms say of the cluster around them, as the administrator says it by flags.

use std::str::FromStr;

use api::text::ObjectName;
use clap::{Args, ValueEnum};
use engine::door::surroundings::{Told, Whose};

#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// Whose Ingresses, and whose Argo CD and Grafana, the status of each Terraform tells of: those of all namespaces, those of its own one, or
    /// none. The controllers must be allowed to list and watch Ingresses and Services [default: all in `terrane up`, else none]
    #[arg(long, value_name = "WHOSE")]
    surroundings: Option<Named>,
    /// Show the values of this Secret in the status of Terraforms, where it holds the login of Argo CD or Grafana, to everybody who can read
    /// one. The controllers must be allowed to read it. May be given several times; without it such Secrets are only named
    #[arg(long = "show-credentials", value_name = "NAMESPACE/NAME")]
    values: Vec<SecretName>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Named {
    All,
    Own,
    #[value(name = "none")]
    Nobodys,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SecretName(String, String);

impl FromStr for SecretName {
    type Err = String;

    fn from_str(words: &str) -> Result<Self, String> {
        let (namespace, name) = words.split_once('/').ok_or("write NAMESPACE/NAME")?;
        let checked = |name: &str| ObjectName::new(name).map(|name| name.to_string());
        let checked = |name: &str| checked(name).map_err(|error| error.to_string());
        Ok(Self(checked(namespace)?, checked(name)?))
    }
}

impl Surroundings {
    pub(crate) fn told(&self, default: Whose) -> Told {
        let whose = match self.surroundings {
            Some(Named::All) => Whose::All,
            Some(Named::Own) => Whose::Own,
            Some(Named::Nobodys) => Whose::Nobodys,
            None => default,
        };
        let values = self.values.iter().cloned().map(|SecretName(namespace, name)| (namespace, name));
        Told { whose, values: values.collect() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nothing_is_shown_that_was_not_named() {
        let said = Surroundings::default();
        assert_eq!(said.told(Whose::All), Told { whose: Whose::All, ..Told::default() });
        let values = vec!["argocd/admin".parse().unwrap()];
        let told = Surroundings { surroundings: Some(Named::Own), values }.told(Whose::Nobodys);
        assert_eq!(told, Told { whose: Whose::Own, values: [("argocd".into(), "admin".into())].into() });
        for wrong in ["admin", "argocd/", "a/b/c", "/x"] {
            assert!(wrong.parse::<SecretName>().is_err(), "{wrong}");
        }
    }
}
