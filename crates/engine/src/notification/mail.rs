//! The form that a mail has: a head of plain ASCII and a text in UTF-8, written so that every server passes it on as it is. Nothing here
//! knows how it is sent.
//!
//! The same fact is the same mail, letter for letter, whenever it is written: its date is when it happened, and its name follows from the
//! fact's. Programs that read mail show one that comes twice once.

use api::text::MailAddress;
use jiff::fmt::rfc2822::DateTimePrinter;

use super::{Fact, Words};

/// What a line has at most, without its end: some servers fold longer ones, and would do so in the middle of a letter.
const WIDTH: usize = 76;
/// Around each piece of a title that is not plain ASCII.
const BEGIN: &str = "=?utf-8?q?";
const END: &str = "?=";

impl Words {
    /// With its head, every line ended as mail has it.
    pub fn for_mail(&self, fact: &Fact, from: &MailAddress, to: &[MailAddress]) -> String {
        let to: Vec<&str> = to.iter().map(MailAddress::as_str).collect();
        let head = [
            // A time that no calendar of mail has would be the only mistake: such a mail is better than none.
            ("Date", DateTimePrinter::new().timestamp_to_string(&fact.at).unwrap_or_default()),
            ("From", from.to_string()),
            ("To", to.join(",\r\n ")),
            ("Message-ID", format!("<{}@{}>", fact.id, from.domain())),
            ("Subject", subject(&self.title)),
            // Nobody's holidays are told to us.
            ("Auto-Submitted", "auto-generated".to_owned()),
            ("Terrane-Event", fact.event.as_str().to_owned()),
            ("MIME-Version", "1.0".to_owned()),
            ("Content-Type", "text/plain; charset=utf-8".to_owned()),
            ("Content-Transfer-Encoding", "quoted-printable".to_owned()),
        ];
        let mut mail = String::new();
        for (name, value) in head.iter().filter(|(_, value)| !value.is_empty()) {
            mail.push_str(&format!("{name}: {value}\r\n"));
        }
        mail.push_str("\r\n");
        for line in self.text.lines() {
            quote(line, &mut mail);
            mail.push_str("\r\n");
        }
        mail
    }
}

/// As it is where every program reads it alike, otherwise in pieces that say what they are.
fn subject(title: &str) -> String {
    let is_plain = title.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && !title.contains("=?");
    if is_plain && title.len() + "Subject: ".len() <= WIDTH && title.trim() == title {
        return title.to_owned();
    }
    // The first line begins with the field's name, and each other with a blank.
    let room = WIDTH - "Subject: ".len() - BEGIN.len() - END.len();
    let mut pieces = vec![String::new()];
    for letter in title.chars() {
        let mut code = String::new();
        for byte in letter.to_string().bytes() {
            match byte {
                b' ' => code.push('_'),
                b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => code.push(char::from(byte)),
                other => code.push_str(&format!("={other:02X}")),
            }
        }
        // A letter is never divided, for each piece is read alone.
        if pieces.last().is_some_and(|piece| piece.len() + code.len() > room) {
            pieces.push(String::new());
        }
        if let Some(piece) = pieces.last_mut() {
            piece.push_str(&code);
        }
    }
    let pieces: Vec<String> = pieces.iter().map(|piece| format!("{BEGIN}{piece}{END}")).collect();
    pieces.join("\r\n ")
}

/// One line as quoted-printable, broken where it is too long. O(letters).
fn quote(line: &str, mail: &mut String) {
    let mut width = 0;
    let mut bytes = line.bytes().peekable();
    while let Some(byte) = bytes.next() {
        let code = match byte {
            // Blanks at the end of a line get lost on the way.
            b' ' | b'\t' if bytes.peek().is_some() => char::from(byte).to_string(),
            b'=' => "=3D".to_owned(),
            b'!'..=b'~' => char::from(byte).to_string(),
            other => format!("={other:02X}"),
        };
        // The sign that a line goes on has a place of its own.
        if width + code.len() >= WIDTH {
            mail.push_str("=\r\n");
            width = 0;
        }
        mail.push_str(&code);
        width += code.len();
    }
}
