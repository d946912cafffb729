//! Whose question is asked next.

use std::collections::{HashMap, VecDeque};

use super::question::{Question, Whose};

/// Git processes at the same time. Each may use a core.
const TASKS: usize = 4;
/// Of those, how many may be about one repository: one that is slow, or huge, never keeps the others waiting.
const TASKS_OF_ONE: usize = 2;
/// Questions to registries at the same time. They wait for the network, and never for git.
const REGISTRY_TASKS: usize = 16;
/// Of those, how many may be to one registry for one namespace.
const REGISTRY_TASKS_OF_ONE: usize = 4;

/// Who asks next, of repositories and of registries: these wait for different things, and so have tasks of their own.
#[derive(Debug)]
pub(super) struct Turns {
    git: Lines,
    registries: Lines,
}

impl Default for Turns {
    fn default() -> Self {
        let git = Lines::new(TASKS, TASKS_OF_ONE);
        Self { git, registries: Lines::new(REGISTRY_TASKS, REGISTRY_TASKS_OF_ONE) }
    }
}

impl Turns {
    fn lines(&mut self, whose: &Whose) -> &mut Lines {
        match whose {
            Whose::Repository(_) => &mut self.git,
            Whose::Registry { .. } => &mut self.registries,
        }
    }

    pub(super) fn push(&mut self, question: Question) {
        let whose = question.whose();
        self.lines(&whose).push(whose, question);
    }

    pub(super) fn next(&mut self) -> Option<Question> {
        self.git.next().or_else(|| self.registries.next())
    }

    pub(super) fn ended(&mut self, whose: &Whose) {
        self.lines(whose).ended(whose);
    }
}

/// Questions in the order they came, repository by repository, as far as each has tasks left. Every step is O(1).
#[derive(Debug)]
struct Lines {
    most: usize,
    most_of_one: usize,
    working: usize,
    queues: HashMap<Whose, Line>,
    /// A repository for each of its questions that may start.
    ready: VecDeque<Whose>,
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Question>,
    /// How often the repository is among those that are ready; never more than wait.
    ready: usize,
    working: usize,
}

impl Line {
    /// Whether one more of its questions may start.
    fn call(&mut self, most: usize) -> bool {
        let calls = self.ready + self.working < most && self.ready < self.waiting.len();
        self.ready += usize::from(calls);
        calls
    }
}

impl Lines {
    fn new(most: usize, most_of_one: usize) -> Self {
        Self { most, most_of_one, working: 0, queues: HashMap::new(), ready: VecDeque::new() }
    }

    fn push(&mut self, whose: Whose, question: Question) {
        let line = self.queues.entry(whose.clone()).or_default();
        line.waiting.push_back(question);
        if line.call(self.most_of_one) {
            self.ready.push_back(whose);
        }
    }

    fn next(&mut self) -> Option<Question> {
        if self.working >= self.most {
            return None;
        }
        let line = self.queues.get_mut(&self.ready.pop_front()?)?;
        line.ready -= 1;
        line.working += 1;
        self.working += 1;
        line.waiting.pop_front()
    }

    fn ended(&mut self, whose: &Whose) {
        let Some(line) = self.queues.get_mut(whose) else { return };
        self.working = self.working.saturating_sub(1);
        line.working = line.working.saturating_sub(1);
        if line.call(self.most_of_one) {
            self.ready.push_back(whose.clone());
        } else if line.working == 0 && line.waiting.is_empty() {
            self.queues.remove(whose);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use api::image::{ImagePlace, Wanted};
    use api::text::{CommitId, GitUrl, ImageTag};

    use super::super::{Followed, ImageAt, Place};
    use super::*;

    fn question(repository: &str, digit: &str) -> Question {
        let place = Place {
            uid: repository.to_owned(),
            name: repository.to_owned(),
            namespace: "default".to_owned(),
            url: GitUrl::new("https://forge.example/x").unwrap(),
            secret: None,
            ssh_key: None,
        };
        Question::Bundle { place, commit: CommitId::new(digit.repeat(40)).unwrap() }
    }

    #[test]
    fn one_repository_never_takes_all_tasks() {
        let mut turns = Turns::default();
        for digit in ["1", "2", "3", "4"] {
            turns.push(question("huge", digit));
        }
        turns.push(question("small", "1"));
        let started: Vec<Question> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(started, [question("huge", "1"), question("huge", "2"), question("small", "1")]);
        turns.ended(&question("small", "1").whose());
        assert_eq!(turns.next(), None);
        turns.ended(&question("huge", "1").whose());
        assert_eq!(turns.next(), Some(question("huge", "3")));
        assert_eq!(turns.next(), None);
        for expected in [Some(question("huge", "4")), None] {
            turns.ended(&question("huge", "1").whose());
            assert_eq!(turns.next(), expected);
        }
        turns.ended(&question("huge", "4").whose());
        assert!(turns.git.queues.is_empty() && turns.git.ready.is_empty(), "{turns:?}");
    }

    #[test]
    fn registries_that_hang_keep_neither_git_nor_other_registries_waiting() {
        let image = |namespace: &str, host: &str, layer: &str| {
            let place = ImagePlace { host: host.to_owned(), path: "code".to_owned() };
            let at = ImageAt { namespace: namespace.to_owned(), place, credentials: None };
            let wanted = Wanted::Tag(ImageTag::new("1").unwrap());
            Question::Image(Followed { layer: layer.to_owned(), at, wanted })
        };
        let mut turns = Turns::default();
        for layer in 0..10 {
            turns.push(image("default", "hangs.example", &layer.to_string()));
        }
        turns.push(image("default", "works.example", "a"));
        turns.push(image("other", "hangs.example", "a"));
        turns.push(question("code", "1"));
        let started: Vec<Question> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(started.len(), REGISTRY_TASKS_OF_ONE + 3, "{started:?}");
        assert_eq!(started.first(), Some(&question("code", "1")));
        for other in [image("default", "works.example", "a"), image("other", "hangs.example", "a")] {
            assert!(started.contains(&other));
        }
    }
}
