//! Names derived from intent: the same wish is the same object, however often it is made.

use api::image::ImageBuilder;
use api::run::{Action, Mode};
use api::setup::Setup;
use api::text::{BaseImage, CommitId, FilePath, Sha256};

/// What makes one run of a layer another than the next.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    pub layer: &'a str,
    pub layer_uid: &'a str,
    pub action: Action,
    pub mode: Mode,
    pub revision: &'a CommitId,
    pub plan: Option<&'a Sha256>,
    /// The digest of variables and environment; none where the layer gives none.
    pub inputs: Option<&'a Sha256>,
    /// What it is worked with, where that is part of the wish.
    pub setup: Option<&'a Setup>,
    /// Tells apart two wishes for the same commit: the run before a drift check, the text of a manual sync.
    pub token: &'a str,
}

/// Names of pods derive from names of runs, and the longest pod name that can be a host name has 63 characters.
const LAYER_PART: usize = 36;

pub fn run(wish: Wish<'_>) -> String {
    let plan = wish.plan.map(Sha256::as_str).unwrap_or_default();
    let mut parts = vec![
        wish.layer_uid,
        wish.action.as_str(),
        wish.mode.as_str(),
        wish.revision.as_str(),
        plan,
        wish.token,
    ];
    // A layer without inputs has the names that it had before there were any.
    parts.extend(wish.inputs.map(Sha256::as_str));
    let setup = wish.setup.map(|setup| format!("setup {}", setup.digest()));
    parts.extend(setup.as_deref());
    let digest = digest(&parts);
    format!("{}-{}-{digest}", label_part(wish.layer), wish.action.as_str())
}

pub fn pod(run: &str, attempt: u32) -> String {
    format!("{run}-{attempt}")
}

/// What nodes pull the image of a pod with. No pod has this name: theirs end with a number.
pub fn pull_secret(pod: &str) -> String {
    format!("{pod}-pull")
}

/// The pod of a build, and the Secret that it logs in with, in the namespace of all builds: runs of the same name in two namespaces differ.
pub fn builder_pod(layer: &str, run_uid: &str, attempt: u32) -> String {
    format!("{}-build-{}-{attempt}", label_part(layer), digest(&["builder", run_uid]))
}

/// The Job that shows a plan and the apply that follows it. People find the commit in it.
pub fn job(repo: &str, revision: &CommitId, plan: &str) -> String {
    format!("{}-{}-{}", label_part(repo), revision.short(), digest(&["job", plan]))
}

/// The tag of an image that is built: people find the commit in it, and the rest tells apart all else that it is made of.
pub fn built_tag(
    revision: &CommitId,
    base: Option<&BaseImage>,
    builder: ImageBuilder,
    dockerfile: Option<&FilePath>,
) -> String {
    let base = base.map_or("", BaseImage::as_str);
    let mut parts = vec!["image", revision.as_str(), base, builder.id()];
    parts.extend(dockerfile.map(FilePath::as_str));
    format!("{}-{}", revision.short(), digest(&parts))
}

/// What is told of a layer, also to who is told: what happened, and what it is about, such as a run.
pub fn delivery(layer_uid: &str, event: &str, about: &str) -> String {
    let digits = Sha256::of(&framed(&["delivery", layer_uid, event, about]));
    digits.as_str().get(..32).unwrap_or_default().to_owned()
}

/// What a process node calls the directory of this layer's pods. By name and not by uid: to a layer made again nothing has moved.
pub fn directory(layer: &str) -> String {
    format!("{}-{}", label_part(layer), digest(&["directory", layer]))
}

/// The key of a state that the datastore keeps: which repository, which root module,
/// which workspace. Not by uid: a layer made again must find its state.
pub fn state(namespace: &str, repository: &str, path: &str, workspace: &str) -> Sha256 {
    Sha256::of(&framed(&["state", namespace, repository, path, workspace]))
}

/// The Lease that a mutating run holds on a state.
pub fn lease(state: &Sha256) -> String {
    let digits = state.as_str();
    format!("state-{}", digits.get(..40).unwrap_or(digits))
}

fn label_part(name: &str) -> String {
    let cut: String = name.chars().take(LAYER_PART).map(|c| if c == '.' { '-' } else { c }).collect();
    cut.trim_end_matches('-').to_owned()
}

/// Each part behind its length, so that ("ab", "c") and ("a", "bc") differ.
fn framed(parts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part.as_bytes());
    }
    bytes
}

fn digest(parts: &[&str]) -> String {
    Sha256::of(&framed(parts)).short().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn the_same_wish_has_the_same_name_and_another_wish_another() {
        let commit = CommitId::new("a".repeat(40)).unwrap();
        let wish = Wish {
            layer: "db",
            layer_uid: "u1",
            action: Action::Plan,
            mode: Mode::Normal,
            revision: &commit,
            plan: None,
            inputs: None,
            setup: None,
            token: "",
        };
        assert_eq!(run(wish), run(wish));
        assert_ne!(run(wish), run(Wish { token: "x", ..wish }));
        assert_ne!(run(wish), run(Wish { layer_uid: "u2", ..wish }));
        assert_ne!(run(wish), run(Wish { action: Action::Apply, ..wish }));
        assert_ne!(run(wish), run(Wish { mode: Mode::Destroy, ..wish }));
        assert_ne!(run(wish), run(Wish { inputs: Some(&Sha256::of(b"a")), ..wish }));
        let setup =
            |path: &str| serde_json::from_value(json!({ "path": path, "workspace": "default" })).unwrap();
        let (here, there): (Setup, Setup) = (setup("here"), setup("there"));
        assert_ne!(run(wish), run(Wish { setup: Some(&here), ..wish }));
        assert_ne!(run(Wish { setup: Some(&there), ..wish }), run(Wish { setup: Some(&here), ..wish }));
        assert_eq!(
            run(Wish { setup: Some(&setup("here/")), ..wish }),
            run(Wish { setup: Some(&here), ..wish })
        );
    }

    #[test]
    fn the_longest_layer_name_still_gives_a_pod_name() {
        let commit = CommitId::new("a".repeat(40)).unwrap();
        let layer = "x.".repeat(126) + "x";
        let name = pod(
            &run(Wish {
                layer: &layer,
                layer_uid: "u",
                action: Action::Apply,
                mode: Mode::Normal,
                revision: &commit,
                plan: None,
                inputs: None,
                setup: None,
                token: "",
            }),
            100,
        );
        assert!(name.len() <= 63, "{name}");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'), "{name}");
        let uid = "0b3f6a52-6a3c-4c67-9a3e-7d0f6f0d9f11";
        assert_ne!(builder_pod(&layer, uid, 0), builder_pod(&layer, "another", 0));
        for other in [directory(&layer), job(&layer, &commit, &name), builder_pod(&layer, uid, 100)] {
            assert!(other.len() <= 63, "{other}");
            assert!(other.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
        }
    }

    #[test]
    fn parts_cannot_be_shifted_into_one_another() {
        assert_ne!(state("a", "bc", "p", "w"), state("ab", "c", "p", "w"));
    }
}
