//! Against a real mail server what works, and against a fake one, which says line by line what it is told to say, what real ones do not do
//! when they are asked to.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::time::Duration;

use api::notification::{Event, Mail};
use engine::notification::{Fact, words};
use jiff::Timestamp;
use serde_json::json;
use sources::Addresses;
use testkit::mail::MailServer;
use tokio::io::{DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::super::post::within;
use super::super::receiver::{To, Way};
use super::*;

const USERNAME: &str = "terrane";
const PASSWORD: &str = "hunter2 and a blank";

fn address(text: &str) -> MailAddress {
    MailAddress::new(text).unwrap()
}

fn mail(to: &[&str]) -> Mail {
    Mail {
        secret_name: "mail".parse().unwrap(),
        from: address("terrane@example.org"),
        to: to.iter().map(|to| address(to)).collect(),
    }
}

fn receiver(to: &[&str], data: &[(&str, &str)]) -> Receiver {
    let data: BTreeMap<String, Vec<u8>> =
        data.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
    Receiver::new(To::Mail(&mail(to)), &data, Addresses::OwnToo).unwrap()
}

fn fact(text: &str) -> Fact {
    Fact {
        id: "0123456789abcdef".to_owned(),
        event: Event::Applied,
        namespace: "team".to_owned(),
        layer: "db".to_owned(),
        run: Some("db-apply-1".to_owned()),
        revision: None,
        at: Timestamp::UNIX_EPOCH,
        message: text.to_owned(),
    }
}

fn message(to: &[&str], text: &str) -> String {
    let (fact, mail) = (fact(text), mail(to));
    words(&fact, None).for_mail(&fact, &mail.from, &mail.to)
}

async fn sent(receiver: &Receiver, message: &str, reached: &[&str]) -> Result<Taken, NotTaken> {
    let Way::Mail(mailbox) = &receiver.way else { unreachable!("a mail server") };
    let found = sources::resolve(&receiver.host, receiver.port, Addresses::OwnToo).await.unwrap();
    let found: Vec<_> = found.into_iter().map(|ip| SocketAddr::new(ip, receiver.port)).collect();
    let reached = reached.iter().map(|reached| address(reached)).collect();
    send(receiver, mailbox, &found, Parcel { message, reached: &reached }).await
}

#[tokio::test]
async fn a_real_server_takes_mails_by_tls_and_by_starttls_from_who_can_log_in() {
    let server = MailServer::start(USERNAME, PASSWORD).await.unwrap();
    let urls = [server.starttls(), server.tls(), server.starttls_by_login()];
    let everybody = ["ann@example.org", "bob@example.org"];
    let text = format!("überall\n.\n..dots\n \nend = {}\u{1f600} \n", "long ".repeat(100));
    for (at, url) in urls.iter().enumerate() {
        let login = |password| {
            let data = [
                ("url", url.as_str()),
                ("ca.crt", server.authority()),
                ("username", USERNAME),
                ("password", password),
            ];
            receiver(&everybody, &data)
        };
        assert_eq!(sent(&login(PASSWORD), &message(&everybody, &text), &[]).await, Ok(Taken::default()));
        let mails = server.mails();
        assert_eq!(mails.len(), at + 1, "{}", server.log_tail());
        let last = &mails[at];
        assert_eq!((&last["from"], &last["to"]), (&json!("terrane@example.org"), &json!(everybody)));
        let headers = &last["headers"];
        assert_eq!(headers["subject"], "team/db: a plan was applied");
        assert_eq!(headers["message-id"], "<0123456789abcdef@example.org>");
        assert_eq!(headers["to"], "ann@example.org, bob@example.org");
        assert_eq!(headers["date"], "Thu, 01 Jan 1970 00:00:00 -0000");
        assert_eq!(headers["auto-submitted"], "auto-generated");
        let said = last["text"].as_str().unwrap().replace("\r\n", "\n");
        assert_eq!(said, format!("{text}\nrun db-apply-1\n"));
        assert_eq!((&last["defects"], &last["ascii"]), (&json!([]), &json!(true)));
        assert!(last["longest"].as_u64().unwrap() <= 78, "{last}");
        let ehlo = last["ehlo"].as_str().unwrap();
        assert!(ehlo.starts_with('['), "{ehlo}");

        let why = sent(&login("wrong"), &message(&everybody, "x"), &[]).await.unwrap_err();
        assert_eq!((why.why.as_str(), why.hope), ("localhost answered 535 to AUTH", Hope::Some));
        let stranger = receiver(&everybody, &[("url", url), ("username", USERNAME), ("password", PASSWORD)]);
        let why = sent(&stranger, &message(&everybody, "x"), &[]).await.unwrap_err().why;
        assert!(
            why.starts_with("localhost cannot be spoken to in private: invalid peer certificate"),
            "{why}"
        );
        let nobody = receiver(&everybody, &[("url", url), ("ca.crt", server.authority())]);
        let why = sent(&nobody, &message(&everybody, "x"), &[]).await.unwrap_err();
        assert_eq!(
            (why.why.as_str(), why.hope),
            ("localhost answered 530 to MAIL FROM: 5.7.0 Authentication required", Hope::Some)
        );
        assert_eq!(server.mails().len(), at + 1);
    }
}

#[tokio::test]
async fn a_real_server_that_refuses_some_gets_it_for_the_others_once() {
    let server = MailServer::start(USERNAME, PASSWORD).await.unwrap();
    let url = server.starttls();
    let data = [
        ("url", url.as_str()),
        ("ca.crt", server.authority()),
        ("username", USERNAME),
        ("password", PASSWORD),
    ];
    let to = |to: &[&str]| receiver(to, &data);
    let never =
        "localhost did not take it for nobody@example.org (550: 5.1.1 there is nobody of that name here)";
    let later = "localhost did not take it for later@example.org (451: 4.7.1 come back later)";

    let some = ["nobody@example.org", "ann@example.org"];
    let taken = sent(&to(&some), &message(&some, "1"), &[]).await.unwrap();
    assert_eq!(taken.except, never);
    assert_eq!(server.mails()[0]["to"], json!(["ann@example.org"]));

    let why = sent(&to(&some[..1]), &message(&some[..1], "2"), &[]).await.unwrap_err();
    assert_eq!((why.why.as_str(), why.hope), (never, Hope::None));

    let some = ["later@example.org", "ann@example.org", "bob@example.org"];
    let why = sent(&to(&some), &message(&some, "3"), &["bob@example.org"]).await.unwrap_err();
    assert_eq!((why.why.as_str(), why.hope), (later, Hope::Some));
    assert_eq!(why.reached, BTreeSet::from([address("ann@example.org"), address("bob@example.org")]));
    assert_eq!(server.mails()[1]["to"], json!(["ann@example.org"]), "bob has it already");
    let why = sent(&to(&some), &message(&some, "3"), &some[1..]).await.unwrap_err();
    assert_eq!(why.why, later);
    assert_eq!(server.mails().len(), 2, "nobody is left to send it to");

    let some = ["nobody@example.org", "ann@example.org"];
    assert_eq!(sent(&to(&some), &message(&some, "4"), &some[1..]).await.unwrap().except, never);
}

/// A fake server of one connection: each of these is said once something has come, the first one at once. What it heard is kept.
struct Fake {
    url: String,
    heard: JoinSet<Vec<String>>,
}

impl Fake {
    async fn start(scheme: &str, script: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{scheme}://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let script: Vec<String> = script.iter().map(|line| (*line).to_owned()).collect();
        let mut heard = JoinSet::new();
        heard.spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            played(stream, script).await
        });
        Self { url, heard }
    }

    async fn tells(mut self) -> Vec<String> {
        self.heard.join_next().await.unwrap().unwrap()
    }
}

/// Ends when the client goes, or when there is nothing left to say.
async fn played(mut stream: impl AsyncRead + AsyncWrite + Unpin, script: Vec<String>) -> Vec<String> {
    let mut heard = Vec::new();
    for answer in script {
        if stream.write_all(answer.as_bytes()).await.is_err() {
            break;
        }
        let mut question = [0; 4096];
        match stream.read(&mut question).await {
            Ok(count @ 1..) => heard.push(String::from_utf8_lossy(&question[..count]).into_owned()),
            _ => break,
        }
    }
    heard
}

const EHLO: &str = "250-fake\r\n250-AUTH PLAIN\r\n250 STARTTLS\r\n";
const OK: &str = "250 ok\r\n";

#[tokio::test]
async fn a_server_that_breaks_the_rules_gets_nothing_and_is_told_of_in_words() {
    let cases: [(&str, &[&str], &str, Hope, usize); 13] = [
        // Said in clear behind the answer, so that it is read as if it came encrypted.
        (
            "smtp+starttls",
            &["220 fake\r\n", EHLO, "220 go\r\n250-injected\r\n250 AUTH PLAIN\r\n"],
            "127.0.0.1 says more than it was asked, as if somebody spoke in between",
            Hope::Some,
            2,
        ),
        (
            "smtp+starttls",
            &["220 fake\r\n", "250-fake\r\n250 AUTH PLAIN\r\n"],
            "127.0.0.1 offers no STARTTLS, and nothing is sent in clear",
            Hope::Some,
            1,
        ),
        (
            "smtp+starttls",
            &["220 fake\r\n", EHLO, "454 not now\r\n"],
            "127.0.0.1 answered 454 to STARTTLS",
            Hope::Some,
            2,
        ),
        (
            "smtp+starttls",
            &["220 fake\r\n", EHLO, "220 go\r\n"],
            "127.0.0.1 cannot be spoken to in private: ",
            Hope::Some,
            3,
        ),
        ("smtp", &["421 too busy\r\n"], "127.0.0.1 answered 421 to the connection", Hope::Some, 0),
        ("smtp", &["SSH-2.0-OpenSSH\r\n"], "127.0.0.1 does not answer as a mail server does", Hope::Some, 0),
        (
            "smtp",
            &["220 fake\r\n220 fake\r\n"],
            "127.0.0.1 says more than it was asked, as if somebody spoke in between",
            Hope::Some,
            0,
        ),
        (
            "smtp",
            &["220 fake\r\n", EHLO, OK, "421 closing\r\n"],
            "127.0.0.1 answered 421 to RCPT TO: closing",
            Hope::Some,
            3,
        ),
        (
            "smtp",
            &["220 fake\r\n", EHLO, "550 not from you\r\n"],
            "127.0.0.1 answered 550 to MAIL FROM: not from you",
            Hope::None,
            2,
        ),
        (
            "smtp",
            &["220 fake\r\n", EHLO, OK, OK, "550 no\r\n"],
            "127.0.0.1 answered 550 to DATA: no",
            Hope::None,
            4,
        ),
        (
            "smtp",
            &["220 fake\r\n", EHLO, OK, OK, "354 go\r\n", "554 spam\r\n"],
            "127.0.0.1 answered 554 to the message: spam",
            Hope::None,
            5,
        ),
        (
            "smtp",
            &["220 fake\r\n", EHLO, OK, OK, "354 go\r\n", "452 full\r\n"],
            "127.0.0.1 answered 452 to the message: full",
            Hope::Some,
            5,
        ),
        ("smtp", &["220 fake\r\n", EHLO, OK], "127.0.0.1 closed the connection", Hope::Some, 3),
    ];
    for (scheme, script, why, hope, questions) in cases {
        let fake = Fake::start(scheme, script).await;
        let receiver = receiver(&["ann@example.org"], &[("url", &fake.url)]);
        let outcome = sent(&receiver, &message(&["ann@example.org"], "x"), &[]).await.unwrap_err();
        drop(receiver);
        assert!(outcome.why.starts_with(why), "{script:?}: {}", outcome.why);
        assert_eq!(outcome.hope, hope, "{script:?}");
        let heard = fake.tells().await;
        assert_eq!(heard.len(), questions, "{script:?}: {heard:?}");
    }
}

#[tokio::test]
async fn an_answer_without_end_is_not_waited_for() {
    let endless = "220-more\r\n".repeat(4096);
    let line = "2".repeat(64 * 1024);
    for said in [endless.as_str(), line.as_str()] {
        let fake = Fake::start("smtp", &[said]).await;
        let receiver = receiver(&["ann@example.org"], &[("url", &fake.url)]);
        let outcome = sent(&receiver, "x", &[]).await.unwrap_err();
        assert_eq!(outcome.why, "127.0.0.1 answers without end");
    }
}

#[tokio::test]
async fn a_silent_server_is_waited_for_as_long_as_any_receiver() {
    let fake = Fake::start("smtp", &["220 fake\r\n", ""]).await;
    let receiver = receiver(&["ann@example.org"], &[("url", &fake.url)]);
    let outcome = within(Duration::from_millis(200), sent(&receiver, "x", &[])).await.unwrap_err();
    assert_eq!((outcome.why.as_str(), outcome.hope), ("it did not answer within 200ms", Hope::Some));
    assert!(fake.tells().await.first().is_some_and(|hello| hello.starts_with("EHLO [127.0.0.1]")));
}

/// A server that has read the password says it wherever it can.
#[tokio::test]
async fn a_password_that_a_server_repeats_is_told_nowhere() {
    let plain = STANDARD.encode(format!("\0{USERNAME}\0{PASSWORD}"));
    for said in [PASSWORD.to_owned(), plain.clone(), STANDARD.encode(PASSWORD)] {
        let script = ["235 in\r\n".to_owned(), "250 ok\r\n".to_owned(), format!("550 not with {said}\r\n")];
        let why = talked(&script, &["AUTH PLAIN"]).await.unwrap_err();
        assert_eq!(why.why, "fake did not take it for ann@example.org (550)");
        let script = ["235 in\r\n".to_owned(), format!("550 not with {said}\r\n")];
        assert_eq!(talked(&script, &["AUTH PLAIN"]).await.unwrap_err().why, "fake answered 550 to MAIL FROM");
        let why = talked(&[format!("535 not with {said}\r\n")], &["AUTH PLAIN LOGIN"]).await.unwrap_err();
        assert_eq!(why.why, "fake answered 535 to AUTH");
    }
    let why = talked(&[], &["AUTH CRAM-MD5 XOAUTH2"]).await.unwrap_err();
    assert_eq!(why.why, "fake takes no password by PLAIN or LOGIN");
}

/// Logs in and sends, as if over TLS. Only here does the fake speak when it is spoken to.
async fn talked(script: &[String], abilities: &[&str]) -> Result<Taken, NotTaken> {
    let (own, theirs): (DuplexStream, DuplexStream) = duplex(64 * 1024);
    let mut server = JoinSet::new();
    let script: Vec<String> = std::iter::once(String::new()).chain(script.iter().cloned()).collect();
    server.spawn(played(theirs, script));
    let mut lines = vec!["fake".to_owned()];
    lines.extend(abilities.iter().map(|line| (*line).to_owned()));
    let login = Login { username: USERNAME.to_owned().into(), password: PASSWORD.to_owned().into() };
    let mailbox = Mailbox {
        from: address("terrane@example.org"),
        to: vec![address("ann@example.org")],
        security: Security::Tls,
        login: None,
    };
    let mut talk = Talk::new(own, "fake");
    talk.log_in(Some(&login), &Reply { code: 250, lines }).await?;
    talk.hand_over(&mailbox, Parcel { message: "x", reached: &BTreeSet::new() }).await
}

#[test]
fn a_line_of_a_message_is_never_the_end_of_it() {
    assert_eq!(stuffed("a\r\n.\r\n.b\n"), "a\r\n..\r\n..b\r\n.");
    assert_eq!(stuffed("a\r.\rb"), "a . b\r\n.");
    assert_eq!(stuffed(""), ".");
}

#[test]
fn of_many_refusals_some_are_told_and_the_others_are_counted() {
    let who: Vec<String> = (0..5).map(|n| n.to_string()).collect();
    assert_eq!(told(&who), "0, 1, 2 and 2 more");
    assert_eq!(told(&who[..2]), "0, 1");
}
