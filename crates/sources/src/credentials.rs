//! Credentials for a repository: how a Secret is read into them, and how git is given them. They reach git through
//! private files only, never through arguments or URLs.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};

use crate::error::Error;
use crate::process::Surroundings;
use crate::remote::Remote;

/// Host keys of the large forges, so that an SSH URL of theirs works with nothing but a key in the Secret.
const FORGE_HOST_KEYS: &str = include_str!("forge_host_keys");

#[derive(Clone, Debug, Default)]
pub struct Credentials {
    pub login: Login,
    /// The authorities, in PEM, that may have signed the certificate of an https server; without them those of the system.
    pub authorities: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub enum Login {
    #[default]
    Anonymous,
    Basic {
        username: String,
        password: SecretString,
    },
    /// A forge's access token; the user name it needs depends on the forge.
    Token(SecretString),
    Ssh {
        private_key: SecretString,
        known_hosts: Option<String>,
    },
}

/// Why a Secret's data are no credentials. Values never appear.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    #[error(
        "the Secret has none of the keys token, password, ssh-privatekey or ca.crt; add one of them (and username beside password)"
    )]
    NothingUsable,
    #[error("key {0} of the Secret is not text in UTF-8; store it again without changing its encoding")]
    NotText(&'static str),
    #[error("key {0} of the Secret is empty; store the value again")]
    Empty(&'static str),
    #[error(
        "key {0} of the Secret is no private key: it must begin with a line such as -----BEGIN OPENSSH PRIVATE KEY----- and end with the like; store the whole file that ssh-keygen made, not the one with .pub"
    )]
    NoKey(&'static str),
    #[error(
        "key {0} of the Secret is a private key with a passphrase, which nobody is here to type; store one without"
    )]
    Passphrase(&'static str),
}

impl Credentials {
    /// Reads the data of a Secret. The names are those that users of other tools have in their Secrets already.
    pub fn from_secret(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, InvalidSecret> {
        let text = |name: &'static str| -> Result<Option<String>, InvalidSecret> {
            let Some(bytes) = data.get(name) else { return Ok(None) };
            let text = std::str::from_utf8(bytes).map_err(|_| InvalidSecret::NotText(name))?;
            if text.trim().is_empty() { Err(InvalidSecret::Empty(name)) } else { Ok(Some(text.to_owned())) }
        };
        let authorities = text("ca.crt")?;
        for name in ["ssh-privatekey", "sshPrivateKey", "identity"] {
            if let Some(mut key) = text(name)? {
                check_private_key(name, &key)?;
                // OpenSSH refuses a key whose last line has no end, which editors and web forms like to cut off.
                if !key.ends_with('\n') {
                    key.push('\n');
                }
                let login = Login::Ssh { private_key: key.into(), known_hosts: text("known_hosts")? };
                return Ok(Self { login, authorities });
            }
        }
        let line = |name| text(name).map(|value| value.map(|value| value.trim().to_owned()));
        let login = match (line("token")?, line("username")?, line("password")?) {
            (Some(token), _, _) => Login::Token(token.into()),
            (None, Some(username), Some(password)) => Login::Basic { username, password: password.into() },
            (None, None, Some(password)) => Login::Token(password.into()),
            (None, None, None) if authorities.is_some() => Login::Anonymous,
            (None, _, None) => return Err(InvalidSecret::NothingUsable),
        };
        Ok(Self { login, authorities })
    }

    /// Lays the credentials into git's private directory and points git at them.
    pub(crate) fn install(&self, remote: &Remote, surroundings: &mut Surroundings) -> Result<(), Error> {
        if let Some(authorities) = &self.authorities {
            let file = surroundings.private_file("authorities", authorities.as_bytes())?;
            surroundings.set("GIT_SSL_CAINFO", file);
        }
        match (&self.login, remote) {
            (Login::Basic { username, password }, Remote::Https { .. }) => {
                install_askpass(surroundings, username, password)
            }
            (Login::Token(token), Remote::Https { host, .. }) => {
                let username = if host.as_str() == "bitbucket.org" { "x-token-auth" } else { "git" };
                install_askpass(surroundings, username, token)
            }
            (Login::Ssh { private_key, known_hosts }, Remote::Ssh { host, port, pinned, .. }) => {
                let key = surroundings.private_file("key", private_key.expose_secret().as_bytes())?;
                let hosts = surroundings.private_file(
                    "known_hosts",
                    known_hosts.as_deref().unwrap_or(FORGE_HOST_KEYS).as_bytes(),
                )?;
                // Under an alias ssh does not look for the port by itself, and known_hosts names a server on another port so.
                let alias = if *port == 22 { host.clone() } else { format!("[{host}]:{port}") };
                let mut command = format!(
                    "ssh -F /dev/null -o BatchMode=yes -o IdentitiesOnly=yes -o IdentityFile='{}' \
                     -o StrictHostKeyChecking=yes -o UserKnownHostsFile='{}' -o GlobalKnownHostsFile=/dev/null \
                     -o PermitLocalCommand=no -o ForwardAgent=no -o ControlMaster=no -o ConnectTimeout=20 \
                     -o HostKeyAlias='{alias}'",
                    key.display(),
                    hosts.display(),
                );
                if let Some(address) = pinned {
                    command.push_str(&format!(" -o HostName='{address}'"));
                }
                surroundings.set("GIT_SSH_COMMAND", command);
                surroundings.set("GIT_SSH_VARIANT", "ssh");
                Ok(())
            }
            (Login::Anonymous, Remote::Ssh { url, .. }) => Err(Error::Forbidden {
                url: url.clone(),
                why: "an ssh URL needs a Secret with ssh-privatekey; name it in credentials.secretName".to_owned(),
            }),
            (Login::Basic { .. } | Login::Token(_), Remote::Ssh { url, .. }) => Err(Error::Forbidden {
                url: url.clone(),
                why: "the Secret has a password or token, but an ssh URL needs ssh-privatekey; change one of the two"
                    .to_owned(),
            }),
            (Login::Ssh { .. }, Remote::Https { url, .. }) => Err(Error::Forbidden {
                url: url.clone(),
                why: "the Secret has an SSH key, but an https URL needs token or password; change one of the two"
                    .to_owned(),
            }),
            (Login::Anonymous, Remote::Https { .. }) | (_, Remote::File { .. }) => Ok(()),
        }
    }
}

/// Said here because OpenSSH only says that the server refused it.
fn check_private_key(name: &'static str, key: &str) -> Result<(), InvalidSecret> {
    let is_edge = |line: Option<&str>, word: &str| {
        line.is_some_and(|line| {
            line.starts_with(&format!("-----{word} ")) && line.ends_with("PRIVATE KEY-----")
        })
    };
    let mut lines = key.trim().lines().map(str::trim);
    let (first, second, last) = (lines.next(), lines.next(), lines.next_back());
    if !is_edge(first, "BEGIN") || !is_edge(last, "END") {
        return Err(InvalidSecret::NoKey(name));
    }
    let is_sealed = first.is_some_and(|line| line.contains("ENCRYPTED"))
        || second.is_some_and(|line| line.starts_with("Proc-Type:") && line.contains("ENCRYPTED"));
    if is_sealed { Err(InvalidSecret::Passphrase(name)) } else { Ok(()) }
}

fn install_askpass(
    surroundings: &mut Surroundings,
    username: &str,
    password: &SecretString,
) -> Result<(), Error> {
    surroundings.private_file("username", username.as_bytes())?;
    surroundings.private_file("password", password.expose_secret().as_bytes())?;
    let program = surroundings.private_program(
        "askpass",
        "#!/bin/sh\ncase \"$1\" in\nUsername*) exec cat \"${0%/*}/username\" ;;\n*) exec cat \"${0%/*}/password\" ;;\nesac\n",
    )?;
    surroundings.set("GIT_ASKPASS", program);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn secret(pairs: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn every_key_of_a_forge_has_the_fingerprint_that_its_forge_publishes() {
        use base64::Engine as _;
        use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
        use sha2::Digest as _;
        let published = [
            ("github.com", "ssh-ed25519", "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"),
            ("gitlab.com", "ssh-ed25519", "SHA256:eUXGGm1YGsMAS7vkcx6JOJdOGHPem5gQp4taiCfCLB8"),
            ("bitbucket.org", "ssh-ed25519", "SHA256:ybgmFkzwOSotHTHLJgHO0QN8L0xErw6vd0VhFA9m3SM"),
            ("codeberg.org", "ssh-ed25519", "SHA256:mIlxA9k46MmM6qdJOdMnAQpzGxF4WIVVL+fj+wZbw0g"),
            ("ssh.dev.azure.com", "ssh-rsa", "SHA256:ohD8VZEXGWo6Ez8GSEJQ9WpafgLFsOfLOtGGQCQo6Og"),
        ];
        let mut shipped = Vec::new();
        for line in FORGE_HOST_KEYS.lines() {
            let [host, kind, key, fingerprint] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let key = STANDARD.decode(key).unwrap();
            // The key says itself of which kind it is.
            let (length, rest) = key.split_first_chunk::<4>().unwrap();
            let length = usize::try_from(u32::from_be_bytes(*length)).unwrap();
            assert_eq!(&rest[..length], kind.as_bytes(), "{line}");
            let found = format!("SHA256:{}", STANDARD_NO_PAD.encode(sha2::Sha256::digest(&key)));
            assert_eq!(found, fingerprint, "{host}");
            shipped.push((host, kind, fingerprint));
        }
        assert_eq!(shipped, published);
    }

    #[test]
    fn secrets_of_each_kind_are_understood() {
        let basic = Credentials::from_secret(&secret(&[("username", "u"), ("password", "p\n")])).unwrap();
        assert!(matches!(&basic.login, Login::Basic { username, password }
            if username == "u" && password.expose_secret() == "p"));
        assert!(matches!(
            Credentials::from_secret(&secret(&[("token", "t")])).unwrap().login,
            Login::Token(_)
        ));
        let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nKEY\n-----END OPENSSH PRIVATE KEY-----";
        let ssh = Credentials::from_secret(&secret(&[("ssh-privatekey", key)])).unwrap();
        assert!(matches!(&ssh.login, Login::Ssh { private_key, known_hosts: None }
            if *private_key.expose_secret() == format!("{key}\n")));
        let public =
            Credentials::from_secret(&secret(&[("ssh-privatekey", "ssh-ed25519 AAAA ann@example.org")]));
        assert_eq!(public.unwrap_err(), InvalidSecret::NoKey("ssh-privatekey"));
        let cut =
            Credentials::from_secret(&secret(&[("identity", "-----BEGIN RSA PRIVATE KEY-----\nKEY\n")]));
        assert_eq!(cut.unwrap_err(), InvalidSecret::NoKey("identity"));
        let sealed =
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nKEY\n-----END RSA PRIVATE KEY-----\n";
        let sealed = Credentials::from_secret(&secret(&[("sshPrivateKey", sealed)]));
        assert_eq!(sealed.unwrap_err(), InvalidSecret::Passphrase("sshPrivateKey"));
        let open = Credentials::from_secret(&secret(&[("ca.crt", "PEM")])).unwrap();
        assert!(matches!(open.login, Login::Anonymous) && open.authorities.as_deref() == Some("PEM"));
        assert_eq!(
            Credentials::from_secret(&secret(&[("username", "u")])).unwrap_err(),
            InvalidSecret::NothingUsable
        );
        assert_eq!(
            Credentials::from_secret(&secret(&[("token", " \n")])).unwrap_err(),
            InvalidSecret::Empty("token")
        );
    }

    #[test]
    fn debug_shows_no_value() {
        let shown = format!("{:?}", Login::Token("hunter2".to_owned().into()));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
