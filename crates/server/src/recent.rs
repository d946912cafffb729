//! What the API said about rights to list a moment ago. A page of layers asks about each namespace; asked anew for every page that would be
//! most of the work. Rights on single objects are never remembered.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::text::Sha256;
use secrecy::ExposeSecret;

use crate::person::{Person, Proof, Right};
use crate::{Refusal, Service};

/// How long a right that was taken away may still show a list.
const BELIEVED: Duration = Duration::from_secs(5);
/// More than so many answers are forgotten together.
const MOST: usize = 100_000;

/// Whose token, which kind and which namespace.
type Question = (Sha256, String, String);

#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<HashMap<Question, (bool, Instant)>>);

impl Service {
    /// Whether somebody has a right to list, by what was said in the last seconds.
    pub(crate) async fn recently_allows(&self, person: &Person, right: Right<'_>) -> Result<bool, Refusal> {
        let Proof::Bearer(token) = &person.proof else { return self.allows(person, right).await };
        // By the token itself: two that prove the same user may prove other groups.
        let who = Sha256::of(token.expose_secret().as_bytes());
        let key = (who, right.resource.to_owned(), right.namespace.to_owned());
        let known = self.recent.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        if let Some((allowed, at)) = known
            && at.elapsed() < BELIEVED
        {
            return Ok(allowed);
        }
        let allowed = self.allows(person, right).await?;
        let mut answers = self.recent.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= MOST {
            answers.clear();
        }
        answers.insert(key, (allowed, Instant::now()));
        Ok(allowed)
    }
}
