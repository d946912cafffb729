//! What is needed next, decided from what was observed. Everything here is a pure function of its arguments: no clock, no IO,
//! no randomness, and no way to fail. A rule about *when* belongs here; a rule about *how to read or write* belongs in
//! `controllers`.

pub mod bundles;
pub mod definitions;
pub mod door;
pub mod image;
pub mod layer;
pub mod leader;
pub mod manifests;
pub mod names;
pub mod news;
pub mod notification;
pub mod outputs;
pub mod queue;
pub mod repository;
pub mod retry;
pub mod run;
pub mod schedule;
pub mod shard;
pub mod webhook;

use std::time::Duration;

use api::LOCAL_IMAGE;
use api::attempt::Registries;
use api::backends::Backends;
use api::image::ImageBuilder;
use api::overrides::Allowed;
use api::text::{BaseImage, ImageRepository};
use jiff::{SignedDuration, Timestamp};

/// What is known about something outside. `Unknown` is not `Absent`: nothing is ever started because a read failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read<T> {
    Present(T),
    Absent,
    Unknown,
}

impl<T> Read<T> {
    pub fn as_ref(&self) -> Read<&T> {
        match self {
            Read::Present(value) => Read::Present(value),
            Read::Absent => Read::Absent,
            Read::Unknown => Read::Unknown,
        }
    }

    pub fn present(self) -> Option<T> {
        match self {
            Read::Present(value) => Some(value),
            Read::Absent | Read::Unknown => None,
        }
    }
}

/// When an object is looked at again if nothing about it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    OnChange,
    At(Timestamp),
}

impl Wake {
    /// The earlier of two wishes.
    pub fn sooner(self, other: Wake) -> Wake {
        match (self, other) {
            (Wake::OnChange, wake) | (wake, Wake::OnChange) => wake,
            (Wake::At(a), Wake::At(b)) => Wake::At(a.min(b)),
        }
    }
}

/// An Event for people who read `kubectl describe`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub severity: Severity,
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

/// How images are built, where they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Builds {
    /// What code is laid over, where a layer says nothing of it.
    pub base: Option<BaseImage>,
    pub registries: Registries,
    pub builder: Builder,
}

/// Who builds them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Builder {
    /// The layer's own runners, which execute nothing of the code.
    #[default]
    Runner,
    Kaniko(Kaniko),
}

/// How kaniko's pods are made. kaniko needs root, so they are in a namespace of their own, never in a layer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kaniko {
    pub namespace: String,
    pub image: String,
    /// Where it keeps layers between builds; without it, beside each image.
    pub cache: Option<ImageRepository>,
}

impl Builder {
    pub fn kind(&self) -> ImageBuilder {
        match self {
            Self::Runner => ImageBuilder::Runner,
            Self::Kaniko(_) => ImageBuilder::Kaniko,
        }
    }
}

impl Builds {
    /// The namespace that kaniko's pods are in, where it builds.
    pub fn namespace(&self) -> Option<&str> {
        match &self.builder {
            Builder::Runner => None,
            Builder::Kaniko(kaniko) => Some(&kaniko.namespace),
        }
    }
}

/// What the administrator decides for all layers, where neither layer nor repository says otherwise.
#[derive(Debug, Clone)]
pub struct Settings {
    pub poll_interval: Duration,
    /// How often the registries of images are asked.
    pub image_interval: Duration,
    pub drift_interval: Duration,
    /// How old a plan may be when it is applied.
    pub plan_expiry: Duration,
    pub max_retries: u32,
    /// Runner pods at work at the same time, over all repositories; 0 sets no limit.
    pub max_runner_pods: u32,
    /// Finished runs that a layer keeps.
    pub runs_kept: u32,
    pub retry: retry::Policy,
    pub runner: manifests::RunnerSettings,
    /// The backends that layers can ask for.
    pub backends: Backends,
    /// What repositories and layers may ask of their runners.
    pub overrides: Allowed,
    /// What Terraforms say of the cluster around them.
    pub told: door::surroundings::Told,
    /// None where no images are built.
    pub builds: Option<Builds>,
    /// None where the runners' own image unpacks those that are code.
    pub image_pods: Option<manifests::ImagePods>,
}

impl Settings {
    pub fn new(runner: manifests::RunnerSettings) -> Self {
        let mut settings = Self {
            poll_interval: Duration::from_secs(60),
            image_interval: Duration::from_secs(6 * 60 * 60),
            drift_interval: Duration::from_secs(30 * 60),
            plan_expiry: Duration::from_secs(24 * 60 * 60),
            max_retries: api::run::default_max_retries(),
            max_runner_pods: 0,
            runs_kept: 5,
            retry: retry::Policy::default(),
            runner,
            backends: Backends::default(),
            overrides: Allowed::default(),
            told: door::surroundings::Told::default(),
            builds: None,
            image_pods: None,
        };
        settings.allow(Allowed::default());
        settings
    }

    /// Lets this be asked of runners. Where they are processes, what only a container has cannot be.
    pub fn allow(&mut self, overrides: Allowed) {
        let are_processes = self.runner.image == LOCAL_IMAGE;
        self.overrides = if are_processes { overrides.on_processes() } else { overrides };
    }
}

/// `at + span`, staying inside what a timestamp can hold.
pub fn later(at: Timestamp, span: Duration) -> Timestamp {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    at.saturating_add(span).unwrap_or(Timestamp::MAX)
}
