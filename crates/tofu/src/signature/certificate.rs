//! A public key with what its owner says about it: subkeys, what each may do, until when, and what was revoked. Everything that
//! counts is proved by a signature of the primary key; what others certify is ignored.

use super::packets::{Packet, dearmoured, packets};
use super::{Error, Fingerprint, Key, SIGNATURE, Signature};

const PUBLIC_KEY: u8 = 6;
const USER_ID: u8 = 13;
const PUBLIC_SUBKEY: u8 = 14;

const CERTIFICATIONS: std::ops::RangeInclusive<u8> = 0x10..=0x13;
const SUBKEY_BINDING: u8 = 0x18;
const PRIMARY_BINDING: u8 = 0x19;
const DIRECT: u8 = 0x1f;
const KEY_REVOCATION: u8 = 0x20;
const SUBKEY_REVOCATION: u8 = 0x28;

const MAY_SIGN: u8 = 0x02;

/// One key that an administrator trusts, with its subkeys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    primary: Key,
    keys: Vec<SigningKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SigningKey {
    key: Key,
    /// Seconds after the key's creation.
    lifetime: Option<u32>,
    is_revoked: bool,
}

/// All public keys of a file, armoured or not.
pub fn read_certificates(input: &[u8]) -> Result<Vec<Certificate>, Error> {
    let bytes = dearmoured(input)?;
    let packets = packets(&bytes)?;
    let starts: Vec<usize> = packets
        .iter()
        .enumerate()
        .filter_map(|(at, packet)| (packet.tag == PUBLIC_KEY).then_some(at))
        .collect();
    if starts.is_empty() {
        return Err(Error::Malformed("it holds no public key"));
    }
    let ends = starts.iter().skip(1).copied().chain([packets.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(start, end)| Certificate::read(packets.get(*start..end).unwrap_or_default()))
        .collect()
}

impl Certificate {
    pub fn fingerprint(&self) -> Fingerprint {
        self.primary.fingerprint
    }

    /// The packets of one certificate, its primary key first. O(packets), and a check of each self-signature.
    fn read(packets: &[Packet<'_>]) -> Result<Self, Error> {
        let Some((first, rest)) = packets.split_first() else {
            return Err(Error::Malformed("it holds no public key"));
        };
        let primary = Key::read(first.body)?;
        let mut newest_of_primary: Option<Signature> = None;
        let mut primary_is_revoked = false;
        let mut subkeys: Vec<Subkey> = Vec::new();
        let mut subject = primary.framed();
        for packet in rest {
            match packet.tag {
                USER_ID => {
                    let length = u32::try_from(packet.body.len()).unwrap_or(u32::MAX).to_be_bytes();
                    subject = [&primary.framed()[..], &[0xb4], &length, packet.body].concat();
                }
                PUBLIC_SUBKEY => {
                    // One that cannot be read is not used; what is signed after it counts for nothing.
                    subject = Vec::new();
                    let Ok(key) = Key::read(packet.body) else { continue };
                    subject = [primary.framed(), key.framed()].concat();
                    subkeys.push(Subkey { key, binding: None, is_revoked: false });
                }
                SIGNATURE => {
                    // What cannot be read is somebody else's, or says nothing that could be believed.
                    let Ok(signature) = Signature::read(packet.body) else { continue };
                    let on_subkey = subkeys.last_mut();
                    match (signature.kind, on_subkey) {
                        (kind, None) if CERTIFICATIONS.contains(&kind) || kind == DIRECT => {
                            if primary.made(&signature, &subject) {
                                keep_newest(&mut newest_of_primary, signature);
                            }
                        }
                        (KEY_REVOCATION, _) => {
                            primary_is_revoked |= primary.made(&signature, &primary.framed());
                        }
                        (SUBKEY_BINDING, Some(subkey)) => {
                            if primary.made(&signature, &subject) && subkey.agrees(&signature, &subject) {
                                keep_newest(&mut subkey.binding, signature);
                            }
                        }
                        (SUBKEY_REVOCATION, Some(subkey)) => {
                            subkey.is_revoked |= primary.made(&signature, &subject);
                        }
                        (_, _) => {}
                    }
                }
                // Pictures and what programs keep for themselves; what is signed after them is about them.
                _ => subject = Vec::new(),
            }
        }
        let Some(own) = newest_of_primary else {
            return Err(Error::Malformed("the key does not vouch for itself in a way that is accepted"));
        };
        let mut keys = Vec::new();
        if may_sign(&own) {
            let (lifetime, is_revoked) = (own.key_lifetime, primary_is_revoked);
            keys.push(SigningKey { key: primary.clone(), lifetime, is_revoked });
        }
        for subkey in subkeys {
            let Some(binding) = subkey.binding.filter(may_sign) else { continue };
            keys.push(SigningKey {
                lifetime: binding.key_lifetime,
                is_revoked: subkey.is_revoked || primary_is_revoked,
                key: subkey.key,
            });
        }
        if keys.is_empty() {
            return Err(Error::Unsupported("only keys that cannot sign"));
        }
        Ok(Self { primary, keys })
    }

    /// Whether one of these keys made the signature and was valid then; `None` if the signature names another key.
    pub(super) fn check(&self, signature: &Signature, content: &[u8]) -> Option<Result<(), Error>> {
        let named = |key: &&SigningKey| match &signature.issuer {
            Some(issuer) => key.key.fingerprint.0.ends_with(issuer),
            None => key.key.made(signature, content),
        };
        let signer = self.keys.iter().find(named)?;
        let fingerprint = self.fingerprint();
        let not_valid = |why| Some(Err(Error::KeyNotValid { fingerprint, why }));
        if !signer.key.made(signature, content) {
            return Some(Err(Error::Wrong { fingerprint }));
        }
        if signer.is_revoked {
            return not_valid("its owner has revoked it");
        }
        if signature.created < signer.key.created {
            return not_valid("the signature claims to be older than the key");
        }
        let age = signature.created - signer.key.created;
        // Releases stay where they are after their key has ended: what counts is when they were signed.
        if signer.lifetime.is_some_and(|lifetime| age >= lifetime) {
            return not_valid("it had expired when the signature was made; fetch the vendor's current key");
        }
        Some(Ok(()))
    }
}

struct Subkey {
    key: Key,
    binding: Option<Signature>,
    is_revoked: bool,
}

impl Subkey {
    /// A key that signs must say itself that it belongs to the primary one, or anybody could adopt somebody's key.
    fn agrees(&self, binding: &Signature, subject: &[u8]) -> bool {
        if !may_sign(binding) {
            return true;
        }
        let Some(embedded) = &binding.embedded else { return false };
        Signature::read(embedded)
            .is_ok_and(|signature| signature.kind == PRIMARY_BINDING && self.key.made(&signature, subject))
    }
}

fn may_sign(about: &Signature) -> bool {
    // Without flags a key may do whatever its kind can do.
    about.flags.is_none_or(|flags| flags & MAY_SIGN != 0)
}

fn keep_newest(kept: &mut Option<Signature>, signature: Signature) {
    if kept.as_ref().is_none_or(|kept| kept.created <= signature.created) {
        *kept = Some(signature);
    }
}
