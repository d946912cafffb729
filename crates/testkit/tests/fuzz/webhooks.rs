//! Deliveries of webhooks: an input is the kind of host, headers, an empty line and a body. Whatever they hold, nobody is believed who
//! does not know the secret, and what is read of a body that was is branches and tags.

use forge::Host;
use forge::address::Address;
use forge::event::{Encoding, Said};
use forge::proof::{Proof, Secrets};
use testkit::deliveries::Delivery;

use super::fuzz;

#[test]
fn webhook() {
    let secrets = Secrets::read(b"what no input of the corpus has ever held").unwrap();
    fuzz("webhook", |input| {
        let Some(delivery) = Delivery::parse(input) else { return };
        let named = delivery.host.parse::<Host>().ok();
        for host in named.map_or(Host::ALL.to_vec(), |host| vec![host]) {
            if let Ok(proof) = Proof::read(host, &delivery.headers) {
                assert!(!proof.holds(&secrets, &delivery.body), "{host} believed a stranger");
            }
            let kind = delivery.headers.get("content-type").map(|value| value.as_bytes()).unwrap_or_default();
            let encoding = Encoding::read(host, kind).unwrap_or(Encoding::Json);
            let said = forge::event::read(host, &delivery.headers, encoding, &delivery.body);
            assert_eq!(said, forge::event::read(host, &delivery.headers, encoding, &delivery.body));
            match said {
                Ok(Said::Push(push)) => {
                    assert!(!push.heads.is_empty());
                    let known =
                        |name: &str| name.starts_with("refs/heads/") || name.starts_with("refs/tags/");
                    assert!(push.heads.iter().all(|(name, _)| known(name)), "{push:?}");
                }
                Ok(Said::Other(why)) => {
                    assert!(!why.chars().any(char::is_control) && why.len() < 1024, "{why}")
                }
                Err(_) => {}
            }
        }
        for line in String::from_utf8_lossy(&delivery.body).lines() {
            if let Some(address) = Address::read(line) {
                assert!(!address.ends_in(""));
            }
        }
    });
}
