//! `terrane completion`, and what kubectl asks for when somebody presses Tab behind `kubectl terrane`.

use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::arguments::{Arguments, Target};

/// A person who pressed Tab does not wait longer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Tells kubectl to offer these words only, no files.
const NO_FILES: &str = ":4";

pub(crate) fn run(shell: clap_complete::Shell) -> anyhow::Result<()> {
    clap_complete::generate(shell, &mut Arguments::command(), "terrane", &mut std::io::stdout());
    Ok(())
}

/// The program as kubectl calls it for completion: `kubectl_complete-terrane`, with the words behind `kubectl terrane`.
pub(crate) const PROGRAM: &str = "kubectl_complete-terrane";

pub(crate) async fn answer_kubectl(words: Vec<String>) -> ExitCode {
    let offer = offer(&words);
    let mut candidates = offer.words;
    if let Some(namespace) = offer.layers_of {
        // Without an answer in time there are fewer words, not an error.
        candidates.extend(tokio::time::timeout(PATIENCE, layers(namespace)).await.unwrap_or_default());
    }
    let prefix = words.last().map(String::as_str).unwrap_or_default();
    candidates.iter().filter(|word| word.starts_with(prefix)).for_each(|word| println!("{word}"));
    println!("{NO_FILES}");
    ExitCode::SUCCESS
}

async fn layers(namespace: Option<String>) -> Vec<String> {
    let target = Target { namespace, kubeconfig: None, context: None };
    let Ok((client, namespace)) = super::connect(&target).await else { return Vec::new() };
    let listed =
        Api::<api::TerraformLayer>::namespaced(client, &namespace).list(&ListParams::default()).await;
    listed.map(|layers| layers.items.iter().map(|layer| layer.name_any()).collect()).unwrap_or_default()
}

/// What can be typed at the last word.
#[derive(Debug, Default, PartialEq, Eq)]
struct Offer {
    words: Vec<String>,
    /// Names of layers too, of this namespace or of the kubeconfig's.
    layers_of: Option<Option<String>>,
}

/// O(verbs and flags), which are few.
fn offer(words: &[String]) -> Offer {
    let mut root = Arguments::command();
    root.build();
    let mut command = &root;
    let Some((last, before)) = words.split_last() else { return Offer::default() };
    let mut namespace = None;
    let mut typed = before.iter();
    while let Some(word) = typed.next() {
        match word.as_str() {
            "-n" | "--namespace" => namespace = typed.next().cloned(),
            word => command = command.find_subcommand(word).unwrap_or(command),
        }
    }
    if last.starts_with('-') {
        let flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
        let words = flags.filter_map(|flag| flag.get_long()).map(|flag| format!("--{flag}")).collect();
        return Offer { words, layers_of: None };
    }
    if command.has_subcommands() {
        let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        return Offer { words: verbs.map(|verb| verb.get_name().to_owned()).collect(), layers_of: None };
    }
    let Some(first) = command.get_positionals().next() else { return Offer::default() };
    let values = first.get_possible_values();
    if values.is_empty() {
        return Offer { words: Vec::new(), layers_of: Some(namespace) };
    }
    Offer { words: values.iter().map(|value| value.get_name().to_owned()).collect(), layers_of: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(words: &[&str]) -> Offer {
        offer(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn tab_offers_verbs_flags_values_and_layers() {
        let verbs = offered(&[""]).words;
        assert!(
            verbs.iter().any(|verb| verb == "plan") && !verbs.iter().any(|verb| verb == "shim"),
            "{verbs:?}"
        );
        assert!(offered(&["state", "ro"]).words.contains(&"rollback".to_owned()));
        assert!(offered(&["plan", "--"]).words.contains(&"--namespace".to_owned()));
        assert!(offered(&["get", ""]).words.contains(&"layers".to_owned()));
        assert_eq!(offered(&["plan", ""]).layers_of, Some(None));
        assert_eq!(offered(&["logs", "-n", "prod", "ne"]).layers_of, Some(Some("prod".to_owned())));
        assert_eq!(offered(&[]), Offer::default());
    }
}
