//! Answers of mail servers: whatever comes, an answer is read once it is whole and not sooner, is as long as it says, and what is told of
//! it is one short line without what must not be told.

use controllers::notification::reply::{EXCERPT, read};

use super::fuzz;

const SECRET: &str = "hunter2";

#[test]
fn smtp() {
    fuzz("smtp", |input| {
        let Ok(Some((reply, used))) = read(input) else { return };
        assert!((200..=559).contains(&reply.code) && !reply.lines.is_empty(), "{reply:?}");
        let whole = &input[..used];
        assert_eq!(read(whole), Ok(Some((reply.clone(), used))), "what follows an answer is no part of it");
        assert_eq!(read(&whole[..used - 1]), Ok(None), "an answer ends with its last byte");
        let excerpt = reply.excerpt(&[SECRET]);
        assert!(
            excerpt.len() <= EXCERPT && excerpt.chars().all(|letter| (' '..='~').contains(&letter)),
            "{excerpt}"
        );
        assert!(!excerpt.contains(SECRET), "{excerpt}");
        let ways = reply.can("AUTH").unwrap_or_default();
        assert!(ways.iter().all(|way| !way.is_empty() && !way.contains(' ')), "{ways:?}");
    });
}
