//! Notifications by e-mail with the real tool and a real mail server: in private, after a login, once, also over a restart; and no
//! password gets out.

use api::TerraformNotification;
use api::notification::Event;
use kube::Api;
use rustix::process::Signal;
use serde_json::json;
use testkit::mail::MailServer;

use crate::end;
use crate::harness::{Terrane, declare_repository, until};
use crate::notifications::{GOOD, keeps, layer, notification, says, secret};

const PASSWORD: &str = "a-password-of-mail-secret";
const WRONG: &str = "a-wrong-password-secret";

#[tokio::test]
async fn what_happens_is_mailed_in_private_once_and_over_a_restart() {
    let server = MailServer::start("terrane", PASSWORD).await.unwrap();
    let (url, authority) = (server.starttls(), server.authority());
    let mut terrane = Terrane::new();
    let client = terrane.start(&[]).await;
    for (name, url, password) in [
        ("mail", url.as_str(), PASSWORD),
        ("wrong", url.as_str(), WRONG),
        ("metadata", "smtps://169.254.169.254", WRONG),
    ] {
        let data = [("url", url), ("username", "terrane"), ("password", password), ("ca.crt", authority)];
        secret(&client, name, &data).await;
        let email = json!({
            "secretName": name, "from": "terrane@example.org", "to": ["ann@example.org", "nobody@example.org"],
        });
        let template = json!({ "title": "{layer}: {event} – fertig", "text": "{message} by {run}" });
        let layers = json!({ "matchLabels": { "applies": "true" } });
        let spec = json!({ "to": { "email": email }, "events": ["Applied"], "layers": layers, "template": template });
        notification(&client, name, spec).await;
        says(&client, name, "Telling").await;
    }
    let files = [("app/main.tf", GOOD), ("db/main.tf", GOOD), ("web/main.tf", GOOD)];
    let _source = declare_repository(&client, "code", &files).await;
    layer(&client, "db", false).await;
    layer(&client, "app", true).await;

    let said = says(&client, "mail", "PartlyTaken").await;
    let refused =
        "localhost did not take it for nobody@example.org (550: 5.1.1 there is nobody of that name here)";
    assert_eq!(said, format!("Applied of layer app was taken, but not by all: {refused}"));
    let notifications = Api::<TerraformNotification>::namespaced(client.clone(), "default");
    let sent = notifications.get("mail").await.unwrap().status.unwrap().last_sent.unwrap();
    assert_eq!((sent.event, sent.except.as_deref()), (Event::Applied, Some(refused)));
    let mails = server.mails();
    assert_eq!(mails.len(), 1, "{mails:?}");
    let headers = &mails[0]["headers"];
    assert_eq!(headers["subject"], "app: Applied – fertig");
    assert_eq!(headers["message-id"], format!("<{}@example.org>", sent.id));
    assert_eq!(mails[0]["to"], json!(["ann@example.org"]));
    let text = mails[0]["text"].as_str().unwrap();
    assert!(text.contains("1 added") && text.contains(" by app-"), "{text}");

    let why = says(&client, "wrong", "NotTaken").await;
    assert_eq!(why, "Applied of layer app was not taken: localhost answered 535 to AUTH; it is tried again");
    let why = says(&client, "metadata", "NotTaken").await;
    assert!(
        why.contains("its host has the address 169.254.169.254, which is not a place for a receiver"),
        "{why}"
    );
    keeps(&terrane, &client, &[PASSWORD, WRONG]).await;
    terrane.signal(Signal::TERM);
    assert_eq!(terrane.ended().await.code(), Some(0));

    let client = terrane.start(&[]).await;
    layer(&client, "web", true).await;
    until("the next is mailed", || std::future::ready((server.mails().len() > 1).then_some(()))).await;
    let mails = server.mails();
    assert_eq!(mails.len(), 2, "what was mailed before is not mailed again: {mails:?}");
    assert_eq!(mails[1]["headers"]["subject"], "web: Applied – fertig");
    keeps(&terrane, &client, &[PASSWORD, WRONG]).await;
    end(terrane).await;
}
