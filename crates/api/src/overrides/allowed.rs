//! What the administrator lets repositories and layers ask of their runners: fields by name, and where a field can do more than another its
//! values by patterns.

use std::collections::BTreeMap;
use std::fmt;

use super::glob;
use crate::similar::similar;

/// A field of an override, as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    Image,
    ImagePullPolicy,
    ImagePullSecrets,
    ServiceAccountName,
    Tolerations,
    NodeSelector,
    Affinity,
    Resources,
    Env,
    EnvFrom,
    Volumes,
    VolumeMounts,
    Metadata,
    InitContainers,
    ExtraInitArgs,
    ExtraPlanArgs,
    ExtraApplyArgs,
    SecurityContext,
    PodSecurityContext,
}

impl Field {
    pub const ALL: [Self; 19] = [
        Self::Image,
        Self::ImagePullPolicy,
        Self::ImagePullSecrets,
        Self::ServiceAccountName,
        Self::Tolerations,
        Self::NodeSelector,
        Self::Affinity,
        Self::Resources,
        Self::Env,
        Self::EnvFrom,
        Self::Volumes,
        Self::VolumeMounts,
        Self::Metadata,
        Self::InitContainers,
        Self::ExtraInitArgs,
        Self::ExtraPlanArgs,
        Self::ExtraApplyArgs,
        Self::SecurityContext,
        Self::PodSecurityContext,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::ImagePullPolicy => "imagePullPolicy",
            Self::ImagePullSecrets => "imagePullSecrets",
            Self::ServiceAccountName => "serviceAccountName",
            Self::Tolerations => "tolerations",
            Self::NodeSelector => "nodeSelector",
            Self::Affinity => "affinity",
            Self::Resources => "resources",
            Self::Env => "env",
            Self::EnvFrom => "envFrom",
            Self::Volumes => "volumes",
            Self::VolumeMounts => "volumeMounts",
            Self::Metadata => "metadata",
            Self::InitContainers => "initContainers",
            Self::ExtraInitArgs => "extraInitArgs",
            Self::ExtraPlanArgs => "extraPlanArgs",
            Self::ExtraApplyArgs => "extraApplyArgs",
            Self::SecurityContext => "securityContext",
            Self::PodSecurityContext => "podSecurityContext",
        }
    }

    /// What its patterns are about.
    pub(super) const fn subject(self) -> &'static str {
        match self {
            Self::Image | Self::InitContainers => "image",
            Self::ImagePullPolicy => "policy",
            Self::ImagePullSecrets => "Secret",
            Self::ServiceAccountName => "ServiceAccount",
            Self::Tolerations => "taint",
            Self::NodeSelector => "label of nodes",
            Self::Affinity => "kind of affinity",
            Self::Resources => "resource",
            Self::Env => "variable",
            Self::EnvFrom => "object",
            Self::Volumes => "kind of volume",
            Self::VolumeMounts => "path",
            Self::Metadata => "label or annotation",
            Self::ExtraInitArgs | Self::ExtraPlanArgs | Self::ExtraApplyArgs => "argument",
            Self::SecurityContext | Self::PodSecurityContext => "setting",
        }
    }

    /// Whether saying nothing about its values would say too much.
    const fn needs_values(self) -> bool {
        match self {
            Self::Image
            | Self::ServiceAccountName
            | Self::Volumes
            | Self::Metadata
            | Self::InitContainers => true,
            Self::ImagePullPolicy
            | Self::ImagePullSecrets
            | Self::Tolerations
            | Self::NodeSelector
            | Self::Affinity
            | Self::Resources
            | Self::Env
            | Self::EnvFrom
            | Self::VolumeMounts
            | Self::ExtraInitArgs
            | Self::ExtraPlanArgs
            | Self::ExtraApplyArgs
            | Self::SecurityContext
            | Self::PodSecurityContext => false,
        }
    }

    /// Whether it says nothing to a node that runs pods as processes.
    pub(super) const fn is_lost_on_processes(self) -> bool {
        match self {
            Self::ImagePullPolicy
            | Self::ImagePullSecrets
            | Self::Affinity
            | Self::Resources
            // A process sees no mount at the path that it is named by.
            | Self::Volumes
            | Self::VolumeMounts
            | Self::InitContainers
            | Self::SecurityContext
            | Self::PodSecurityContext => true,
            Self::Image
            | Self::ServiceAccountName
            | Self::Tolerations
            | Self::NodeSelector
            | Self::Env
            | Self::EnvFrom
            | Self::Metadata
            | Self::ExtraInitArgs
            | Self::ExtraPlanArgs
            | Self::ExtraApplyArgs => false,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What of a field is let be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Values {
    /// Whatever the field can say, but for what has to be named.
    Any,
    /// What one of these patterns covers.
    Like(Vec<String>),
}

impl Values {
    pub(super) fn cover(&self, subject: &str) -> bool {
        match self {
            Values::Any => true,
            Values::Like(patterns) => patterns.iter().any(|pattern| glob::covers(pattern, subject)),
        }
    }

    /// The same of what stars alone do not say.
    pub(super) fn name(&self, subject: &str) -> bool {
        match self {
            Values::Any => false,
            Values::Like(patterns) => patterns
                .iter()
                .any(|pattern| glob::names_something(pattern) && glob::covers(pattern, subject)),
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Any => f.write_str("any"),
            Values::Like(patterns) => f.write_str(&patterns.join(", ")),
        }
    }
}

/// The fields that count, and where the pods are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    pub(super) fields: BTreeMap<Field, Values>,
    pub(super) on_processes: bool,
}

/// What gives a run nothing that its layer, or code of its own, could not have otherwise.
const DEFAULTS: [&str; 11] = [
    "resources=cpu,memory,ephemeral-storage",
    "nodeSelector",
    "tolerations",
    "affinity=nodeAffinity",
    "env",
    "envFrom",
    "volumes=emptyDir,configMap,secret,downwardAPI",
    "volumeMounts",
    "extraInitArgs",
    "extraPlanArgs",
    "extraApplyArgs",
];

/// The word for no field at all.
const NONE: &str = "none";

impl Default for Allowed {
    fn default() -> Self {
        let mut fields = BTreeMap::new();
        for (field, values) in DEFAULTS.iter().filter_map(|words| read(words).ok()) {
            fields.insert(field, values);
        }
        Self { fields, on_processes: false }
    }
}

impl Allowed {
    /// What is named, each as FIELD or FIELD=PATTERN,PATTERN and nothing else; or [`NONE`].
    pub fn only<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut fields: BTreeMap<Field, Values> = BTreeMap::new();
        for word in words.into_iter().filter(|word| *word != NONE) {
            let (field, values) = read(word)?;
            match (fields.get_mut(&field), values) {
                (Some(Values::Like(known)), Values::Like(more)) => known.extend(more),
                (Some(known), Values::Any) => *known = Values::Any,
                (Some(Values::Any), Values::Like(_)) => {}
                (None, values) => drop(fields.insert(field, values)),
            }
        }
        Ok(Self { fields, on_processes: false })
    }

    /// The same where runners are processes.
    pub fn on_processes(self) -> Self {
        Self { on_processes: true, ..self }
    }
}

/// One field and what of it is let be asked for.
fn read(words: &str) -> Result<(Field, Values), String> {
    let (name, patterns) = match words.split_once('=') {
        Some((name, patterns)) => (name, Some(patterns)),
        None => (words, None),
    };
    let Some(field) = Field::ALL.into_iter().find(|field| field.as_str() == name) else {
        let hint = match similar(Field::ALL.iter().map(ToString::to_string), name) {
            Some(meant) => format!("; did you mean {meant}?"),
            None => format!("; there are {}", Field::ALL.map(Field::as_str).join(", ")),
        };
        return Err(format!("overrideRunnerSpec has no field {name}{hint}"));
    };
    let Some(patterns) = patterns else {
        if field.needs_values() {
            let subject = field.subject();
            return Err(format!(
                "say which {subject} {field} may have: {field}=PATTERN,PATTERN, where * stands for anything but a slash and ** for anything"
            ));
        }
        return Ok((field, Values::Any));
    };
    let patterns: Vec<String> = patterns.split(',').map(|pattern| pattern.trim().to_owned()).collect();
    if patterns.iter().any(String::is_empty) {
        return Err(format!("one of the patterns of {field} is empty"));
    }
    Ok((field, Values::Like(patterns)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_default_is_read() {
        assert_eq!(Allowed::default().fields.len(), DEFAULTS.len());
        for careful in [
            Field::Image,
            Field::ServiceAccountName,
            Field::InitContainers,
            Field::Metadata,
            Field::SecurityContext,
        ] {
            assert!(!Allowed::default().fields.contains_key(&careful), "{careful}");
        }
    }

    #[test]
    fn fields_are_named_and_some_need_values() {
        let of = |words: &[&'static str]| Allowed::only(words.iter().copied());
        let two = of(&["image=a/*", "image=b/*,c", "env"]).unwrap();
        assert_eq!(two.fields.len(), 2);
        assert_eq!(two.fields[&Field::Image].to_string(), "a/*, b/*, c");
        assert_eq!(of(&["none"]).unwrap().fields.len(), 0);
        assert_eq!(of(&["env=A", "env"]).unwrap(), of(&["env"]).unwrap());
        for (words, expected) in [
            ("imagee=x", "overrideRunnerSpec has no field imagee; did you mean image?"),
            (
                "image",
                "say which image image may have: image=PATTERN,PATTERN, where * stands for anything but a slash and ** for anything",
            ),
            ("image=", "one of the patterns of image is empty"),
            ("env=A,,B", "one of the patterns of env is empty"),
        ] {
            assert_eq!(of(&[words]).unwrap_err(), expected);
        }
        assert!(of(&["command"]).unwrap_err().starts_with("overrideRunnerSpec has no field command"));
    }
}
