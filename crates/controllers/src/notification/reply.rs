//! What a mail server answers, read out of the bytes that came so far. Total, and with limits: whoever may write a Secret chooses the
//! server, and what it sends is anybody's. Nothing here talks to one.

/// What a line may be long. The standard says 512 and some servers say more.
const LONGEST_LINE: usize = 2048;
/// What a whole answer may be long.
const LONGEST: usize = 16 * 1024;
/// What is told of an answer's words at most, in letters.
pub const EXCERPT: usize = 120;

/// A whole answer, of one line or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// From 200 to 559.
    pub code: u16,
    /// What stands behind the code in each line, as it came. There is at least one.
    pub lines: Vec<String>,
}

/// Why bytes are no answer, and never become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("does not answer as a mail server does")]
    Strange,
    #[error("answers without end")]
    Endless,
}

/// The first answer in these bytes and how many of them it is, or nothing where its end has not come yet. O(bytes).
pub fn read(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Error> {
    let (mut known, mut lines, mut used) = (None, Vec::new(), 0);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        used += line.len();
        if line.len() > LONGEST_LINE || used > LONGEST {
            return Err(Error::Endless);
        }
        let Some(line) = line.strip_suffix(b"\n") else { return Ok(None) };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let code = code(line).ok_or(Error::Strange)?;
        if *known.get_or_insert(code) != code {
            return Err(Error::Strange);
        }
        let (is_last, text) = match line.get(3..) {
            None | Some([]) => (true, &[][..]),
            Some([b' ', text @ ..]) => (true, text),
            Some([b'-', text @ ..]) => (false, text),
            Some(_) => return Err(Error::Strange),
        };
        lines.push(String::from_utf8_lossy(text).into_owned());
        if is_last {
            return Ok(Some((Reply { code, lines }, used)));
        }
    }
    Ok(None)
}

fn code(line: &[u8]) -> Option<u16> {
    match line {
        [first @ b'2'..=b'5', second @ b'0'..=b'5', third @ b'0'..=b'9', ..] => {
            let digit = |byte: &u8| u16::from(byte - b'0');
            Some(digit(first) * 100 + digit(second) * 10 + digit(third))
        }
        _ => None,
    }
}

impl Reply {
    /// What stands behind this word in the list of what a server can do, in capitals; nothing where it cannot.
    pub fn can(&self, word: &str) -> Option<Vec<String>> {
        // The first line greets.
        let mut all = self.lines.iter().skip(1).map(|line| {
            // As old servers write it, `AUTH=PLAIN`.
            line.to_ascii_uppercase().replacen('=', " ", 1)
        });
        all.find_map(|line| {
            let mut words = line.split_ascii_whitespace().map(str::to_owned);
            words.next().filter(|first| first == word).map(|_| words.collect())
        })
    }

    /// A few of the words in one line that any screen can show; none where they hold one of the secrets.
    pub fn excerpt(&self, secrets: &[&str]) -> String {
        let whole = self.lines.join(" ");
        if secrets.iter().any(|secret| whole.contains(secret)) {
            return String::new();
        }
        let shown = |letter: char| if (' '..='~').contains(&letter) { letter } else { '?' };
        let words: String = whole.chars().map(shown).take(EXCERPT).collect();
        words.trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_answer_ends_where_it_says_so() {
        type Whole<'a> = (u16, &'a [&'a str], usize);
        let cases: [(&[u8], Option<Whole<'_>>); 7] = [
            (b"", None),
            (b"250 ok", None),
            (b"250 ok\r\n", Some((250, &["ok"], 8))),
            (b"250\r\n", Some((250, &[""], 5))),
            (b"250-a\r\n250-b\r\n", None),
            (b"250-a\r\n250 b\n354", Some((250, &["a", "b"], 13))),
            (b"220 ready\r\n250 injected\r\n", Some((220, &["ready"], 11))),
        ];
        for (bytes, expected) in cases {
            let found = read(bytes).unwrap();
            let found = found.as_ref().map(|(reply, used)| {
                (reply.code, reply.lines.iter().map(String::as_str).collect::<Vec<_>>(), *used)
            });
            let expected = expected.map(|(code, lines, used)| (code, lines.to_vec(), used));
            assert_eq!(found, expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn what_is_no_answer_and_what_never_ends_is_refused() {
        for bytes in [
            &b"SSH-2.0-x\r\n"[..],
            b"HTTP/1.1 200 OK\r\n",
            b"199 x\r\n",
            b"250_x\r\n",
            b"\r\n",
            b"250-a\r\n550 b\r\n",
        ] {
            assert_eq!(read(bytes), Err(Error::Strange), "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(read(&[b'2'; LONGEST_LINE + 1]), Err(Error::Endless));
        assert_eq!(read(&b"250-more\r\n".repeat(LONGEST / 10 + 1)), Err(Error::Endless));
    }

    #[test]
    fn what_a_server_can_do_is_read_in_any_case_and_in_the_old_form() {
        let (reply, _) =
            read(b"250-AUTH greets\r\n250-starttls\r\n250 Auth=plain LOGIN\r\n").unwrap().unwrap();
        assert_eq!(reply.can("STARTTLS"), Some(Vec::new()));
        assert_eq!(reply.can("AUTH"), Some(vec!["PLAIN".to_owned(), "LOGIN".to_owned()]));
        assert_eq!(reply.can("SIZE"), None);
    }

    #[test]
    fn an_excerpt_is_one_short_line_without_a_secret() {
        let reply = |text: &str| Reply { code: 550, lines: vec![text.to_owned(), "x".repeat(500)] };
        let words = reply("no\u{1b}[31m such\r user\u{202e}").excerpt(&["hunter2"]);
        assert!(words.starts_with("no?[31m such? user? xxx"), "{words}");
        assert_eq!(words.len(), EXCERPT);
        assert_eq!(reply("not hunter2!").excerpt(&["hunter2"]), "");
    }
}
