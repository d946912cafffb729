#![allow(clippy::unwrap_used)]

use super::*;

/// Made by GnuPG: an RSA key that only certifies, with an RSA subkey that signs and one that encrypts, as vendors have it.
const VENDOR: &[u8] = include_bytes!("fixtures/vendor.asc");
/// Made by GnuPG: an Ed25519 key that signs, not armoured; and the same after it was revoked.
const SECOND: &[u8] = include_bytes!("fixtures/second.gpg");
const SECOND_REVOKED: &[u8] = include_bytes!("fixtures/second-revoked.asc");
const SUMS: &[u8] = include_bytes!("fixtures/sums");
const BY_VENDOR: &[u8] = include_bytes!("fixtures/sums.sig");
const BY_SECOND: &[u8] = include_bytes!("fixtures/sums.second.asc");

fn certificates(input: &[u8]) -> Vec<Certificate> {
    read_certificates(input).unwrap()
}

#[test]
fn what_gnupg_signed_is_accepted_and_named_by_its_primary_key() {
    let vendor = verify(SUMS, BY_VENDOR, &certificates(VENDOR)).unwrap();
    assert_eq!(vendor.to_string(), "3D6612F5EA03A7A235B8BD1E61389DE8B063944F");
    let second = verify(SUMS, BY_SECOND, &certificates(SECOND)).unwrap();
    assert_eq!(second.to_string(), "535386A64E7D8BBD10AC788011A06C69DC4B711D");
    let both = [certificates(SECOND), certificates(VENDOR)].concat();
    assert_eq!(verify(SUMS, BY_VENDOR, &both), Ok(vendor));
}

#[test]
fn other_content_and_other_keys_are_refused() {
    let vendor = certificates(VENDOR);
    let mut other = SUMS.to_vec();
    other[0] ^= 1;
    let fingerprint = vendor[0].fingerprint();
    assert_eq!(verify(&other, BY_VENDOR, &vendor), Err(Error::Wrong { fingerprint }));
    let error = verify(SUMS, BY_SECOND, &vendor).unwrap_err();
    assert_eq!(
        error.to_string(),
        "none of the trusted keys made it (3D6612F5EA03A7A235B8BD1E61389DE8B063944F)"
    );
    assert!(matches!(verify(SUMS, BY_VENDOR, &[]), Err(Error::UnknownKey { .. })));
    let revoked = verify(SUMS, BY_SECOND, &certificates(SECOND_REVOKED)).unwrap_err();
    assert!(revoked.to_string().contains("revoked"), "{revoked}");
}

#[test]
fn what_is_no_signature_is_refused() {
    let vendor = certificates(VENDOR);
    for bad in [&b""[..], b"text", b"-----BEGIN PGP SIGNATURE-----\n\niQ==\n", &[0xff, 0xff, 0xff], VENDOR] {
        assert!(verify(SUMS, bad, &vendor).is_err(), "{bad:?}");
    }
    for bad in [&b""[..], b"text", BY_VENDOR, BY_SECOND] {
        assert!(read_certificates(bad).is_err());
    }
}

/// Never a panic, and never a yes: each byte is broken in turn, and each beginning tried. Some bytes are in nobody's interest, such
/// as the hint at the hash; the signature still holds for this very content then.
#[test]
fn a_broken_signature_never_says_yes_to_other_content() {
    let vendor = certificates(VENDOR);
    let mut other = SUMS.to_vec();
    other.push(b'\n');
    for at in 0..BY_VENDOR.len() {
        let mut broken = BY_VENDOR.to_vec();
        broken[at] ^= 0x10;
        assert!(verify(&other, &broken, &vendor).is_err());
        assert!(verify(SUMS, &BY_VENDOR[..at], &vendor).is_err());
    }
}

#[test]
fn a_broken_key_is_refused_or_does_not_sign() {
    let bytes = packets::dearmoured(VENDOR).unwrap();
    let mut other = SUMS.to_vec();
    other.push(b'\n');
    // Every seventh byte: a check of RSA each is slow without optimisation.
    for at in (0..bytes.len()).step_by(7) {
        let mut broken = bytes.clone();
        broken[at] ^= 0x04;
        let Ok(keys) = read_certificates(&broken) else { continue };
        assert!(verify(&other, BY_VENDOR, &keys).is_err());
        let _ = read_certificates(&bytes[..at]);
    }
}
