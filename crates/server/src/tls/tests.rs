//! Certificates of version 1, made here byte by byte so that each can be wrong in one way. Those that OpenSSL makes are
//! in `tests/test_tls.py`.

use std::{sync::Arc, time::Duration};

use graviola::{
    key_agreement::p256::StaticPrivateKey,
    signing::{
        ecdsa::{P256, SigningKey},
        eddsa::Ed25519SigningKey,
    },
};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, ServerConnection,
    SignatureScheme, SupportedProtocolVersion,
    client::{
        ResolvesClientCert,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    server::danger::ClientCertVerifier as _,
    sign::CertifiedKey,
    version::{TLS12, TLS13},
};

use super::{Identity, clients::Clients};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTF8: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;

const ED25519: &[u8] = &[OBJECT, 3, 0x2b, 0x65, 0x70];
const X25519: &[u8] = &[OBJECT, 3, 0x2b, 0x65, 0x6e];
const TRUE: &[u8] = &[0x01, 0x01, 0xff];

/// Periods around, before and behind the time at which most is checked here.
const AROUND: [&str; 2] = ["700101000000Z", "491231235959Z"];
const BEFORE: [&str; 2] = ["700101000000Z", "251231235959Z"];
const BEHIND: [&str; 2] = ["260101000001Z", "491231235959Z"];
const NOW: Duration = Duration::from_secs(1_767_225_600); // The beginning of 2026.

fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let size = content.len();
    let length = match size {
        ..0x80 => vec![size as u8],
        0x80..0x100 => vec![0x81, size as u8],
        _ => vec![0x82, (size >> 8) as u8, size as u8],
    };
    [&[tag][..], &length, &content].concat()
}

fn name(common: &str) -> Vec<u8> {
    let attribute = tlv(SEQUENCE, &[&[OBJECT, 3, 0x55, 0x04, 0x03], &tlv(UTF8, &[common.as_bytes()])]);
    tlv(SEQUENCE, &[&tlv(SET, &[&attribute])])
}

/// An extension of `2.5.29.id`.
fn extension(id: u8, critical: bool, value: &[u8]) -> Vec<u8> {
    let criticality = if critical { TRUE } else { &[] };
    tlv(SEQUENCE, &[&[OBJECT, 3, 0x55, 0x1d, id], criticality, &tlv(OCTET_STRING, &[value])])
}

fn extensions(all: &[Vec<u8>]) -> Vec<u8> {
    let all: Vec<_> = all.iter().map(Vec::as_slice).collect();
    tlv(0xa3, &[&tlv(SEQUENCE, &all)])
}

fn is_authority() -> Vec<u8> {
    extension(19, true, &tlv(SEQUENCE, &[TRUE]))
}

/// What stands in a certificate.
#[derive(Clone)]
struct Content<'a> {
    version: Vec<u8>,
    subject: &'a str,
    issuer: &'a str,
    valid: [&'a str; 2],
    algorithm: &'a [u8],
    /// Behind the key.
    tail: Vec<u8>,
}

/// Of version 1, by `authority` for `client`.
fn client() -> Content<'static> {
    Content {
        version: Vec::new(),
        subject: "client",
        issuer: "authority",
        valid: AROUND,
        algorithm: ED25519,
        tail: Vec::new(),
    }
}

fn version(number: u8) -> Vec<u8> {
    tlv(0xa0, &[&[INTEGER, 1, number]])
}

fn authority(more: &[Vec<u8>]) -> Content<'static> {
    Content { version: version(2), subject: "authority", tail: extensions(more), ..client() }
}

impl Content<'_> {
    fn sign(&self, key: &Ed25519SigningKey, signer: &Ed25519SigningKey) -> CertificateDer<'static> {
        let mut space = [0; 64];
        let key = key.public_key().to_spki_der(&mut space).expect("it fits").to_vec();
        let times = self.valid.map(|time| tlv(UTC_TIME, &[time.as_bytes()]));
        let content = tlv(
            SEQUENCE,
            &[
                &self.version,
                &[INTEGER, 1, 7],
                &tlv(SEQUENCE, &[self.algorithm]),
                &name(self.issuer),
                &tlv(SEQUENCE, &[&times[0], &times[1]]),
                &name(self.subject),
                &key,
                &self.tail,
            ],
        );
        let signature = tlv(BIT_STRING, &[&[0], &signer.sign(&content)]);
        tlv(SEQUENCE, &[&content, &tlv(SEQUENCE, &[ED25519]), &signature]).into()
    }
}

fn keys<const N: usize>() -> [Ed25519SigningKey; N] {
    std::array::from_fn(|_| Ed25519SigningKey::generate().expect("the system has random numbers"))
}

fn clients(roots: &[CertificateDer<'static>]) -> Clients {
    Clients::new(roots.to_vec(), Arc::new(rustls_graviola::default_provider())).expect("roots are certificates")
}

/// What is said of `certificate`, sent with `others`.
fn verify(
    clients: &Clients,
    certificate: &CertificateDer<'_>,
    others: &[CertificateDer<'_>],
) -> Option<CertificateError> {
    match clients.verify_client_cert(certificate, others, UnixTime::since_unix_epoch(NOW)) {
        Ok(_) => None,
        Err(Error::InvalidCertificate(error)) => Some(error),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_certificate_of_version_1_is_the_clients_own() {
    use CertificateError::{BadEncoding, BadSignature, Expired, NotValidYet, UnknownIssuer};
    let [root, key, other] = keys();
    let clients = clients(&[authority(&[is_authority()]).sign(&root, &root)]);
    let good = client().sign(&key, &root);
    let changed = |from_end: usize| {
        let mut bytes = good.to_vec();
        let position = bytes.len() - from_end;
        bytes[position] ^= 1;
        CertificateDer::from(bytes)
    };
    let at_name = good.len() - good.windows(6).position(|part| part == b"client").expect("it is the subject");
    let unique_id = |tag| tlv(tag, &[&[0, 1, 2, 3]]);
    let of_client = Content { subject: "guest", issuer: "client", ..client() }.sign(&other, &key);
    let cases = [
        ("as OpenSSL makes it", good.clone(), None),
        ("with another authority's signature", client().sign(&key, &other), Some(BadSignature)),
        ("its own signature", client().sign(&key, &key), Some(BadSignature)),
        ("of another authority", Content { issuer: "stranger", ..client() }.sign(&key, &root), Some(UnknownIssuer)),
        ("of a client", of_client, Some(UnknownIssuer)),
        ("of itself", Content { issuer: "client", ..client() }.sign(&key, &key), Some(UnknownIssuer)),
        (
            "with the authority's name",
            Content { subject: "authority", ..client() }.sign(&key, &root),
            Some(UnknownIssuer),
        ),
        ("expired", Content { valid: BEFORE, ..client() }.sign(&key, &root), Some(Expired)),
        ("not yet valid", Content { valid: BEHIND, ..client() }.sign(&key, &root), Some(NotValidYet)),
        ("never valid", Content { valid: [BEHIND[0], BEFORE[1]], ..client() }.sign(&key, &root), Some(NotValidYet)),
        ("with a changed name", changed(at_name), Some(BadSignature)),
        ("with a changed signature", changed(1), Some(BadSignature)),
        ("of version 2", Content { version: version(1), ..client() }.sign(&key, &root), Some(BadEncoding)),
        ("with its version in words", Content { version: version(0), ..client() }.sign(&key, &root), Some(BadEncoding)),
        ("of a version to come", Content { version: version(3), ..client() }.sign(&key, &root), Some(BadEncoding)),
        (
            "with extensions",
            Content { tail: extensions(&[is_authority()]), ..client() }.sign(&key, &root),
            Some(BadEncoding),
        ),
        (
            "without any in its extensions",
            Content { tail: extensions(&[]), ..client() }.sign(&key, &root),
            Some(BadEncoding),
        ),
        (
            "with its issuer's number",
            Content { tail: unique_id(0x81), ..client() }.sign(&key, &root),
            Some(BadEncoding),
        ),
        (
            "with its subject's number",
            Content { tail: unique_id(0x82), ..client() }.sign(&key, &root),
            Some(BadEncoding),
        ),
        ("with more inside", Content { tail: vec![5, 0], ..client() }.sign(&key, &root), Some(BadEncoding)),
        ("with more behind", CertificateDer::from([&good[..], &[0]].concat()), Some(BadEncoding)),
        ("cut off", CertificateDer::from(good[..good.len() - 1].to_vec()), Some(BadEncoding)),
        ("signed as it does not say", Content { algorithm: X25519, ..client() }.sign(&key, &root), Some(BadEncoding)),
    ];
    for (what, certificate, expected) in cases {
        assert_eq!(verify(&clients, &certificate, &[]), expected, "a certificate {what}");
        // Whatever else comes with it.
        assert_eq!(
            verify(&clients, &certificate, std::slice::from_ref(&good)),
            expected,
            "a certificate {what}, and another"
        );
    }
}

#[test]
fn a_certificate_of_version_1_signs_no_other() {
    let [root, key, guest] = keys();
    let clients = clients(&[authority(&[is_authority()]).sign(&root, &root)]);
    let good = client().sign(&key, &root);
    let plain = extension(19, true, &tlv(SEQUENCE, &[]));
    for version_3 in [false, true] {
        let form = match version_3 {
            true => Content { version: version(2), tail: extensions(std::slice::from_ref(&plain)), ..client() },
            false => client(),
        };
        let of_client = Content { subject: "guest", issuer: "client", ..form.clone() }.sign(&guest, &key);
        for others in [vec![], vec![good.clone()], vec![good.clone(), good.clone()]] {
            assert!(verify(&clients, &of_client, &others).is_some(), "version 3: {version_3}, {} others", others.len());
        }
        // The same, of the authority's.
        let own = Content { subject: "guest", ..form }.sign(&guest, &root);
        assert_eq!(verify(&clients, &own, &[]), None, "version 3: {version_3}");
    }
}

#[test]
fn a_certificate_that_was_given_is_trusted_for_clients_in_its_time() {
    use CertificateError::{Expired, NotValidYet, UnknownIssuer};
    let [root, key] = keys();
    let purpose = |last| extension(37, false, &tlv(SEQUENCE, &[&[OBJECT, 8, 0x2b, 6, 1, 5, 5, 7, 3, last]]));
    let own = |valid, tail: &[Vec<u8>]| Content { subject: "authority", valid, ..authority(tail) }.sign(&root, &root);
    let of_third = Content { version: version(2), tail: extensions(&[purpose(2)]), ..client() }.sign(&key, &key);
    for good in [own(AROUND, &[is_authority()]), own(AROUND, &[is_authority(), purpose(2)]), of_third] {
        assert_eq!(verify(&clients(std::slice::from_ref(&good)), &good, &[]), None);
        let other = own(AROUND, &[is_authority(), extension(14, false, &[4, 1, 1])]);
        assert_ne!(verify(&clients(&[other]), &good, &[]), None);
    }
    let says =
        |certificate: CertificateDer<'static>| verify(&clients(std::slice::from_ref(&certificate)), &certificate, &[]);
    assert!(matches!(says(own(BEFORE, &[is_authority()])), Some(Expired)));
    assert!(matches!(says(own(BEHIND, &[is_authority()])), Some(NotValidYet)));
    let for_servers = says(own(AROUND, &[is_authority(), purpose(1)]));
    assert!(!matches!(for_servers, None | Some(UnknownIssuer)), "{for_servers:?}");
}

#[test]
fn who_signs_version_1_says_that_it_is_an_authority() {
    let [root, key, old] = keys();
    let usage = |bits| extension(15, true, &[BIT_STRING, 2, 1, bits]);
    let for_clients = tlv(SEQUENCE, &[&[OBJECT, 8, 0x2b, 6, 1, 5, 5, 7, 3, 2]]);
    // One permitted directory: that of any name.
    let names = tlv(SEQUENCE, &[&tlv(0xa0, &[&tlv(SEQUENCE, &[&tlv(0xa4, &[&tlv(SEQUENCE, &[])])])])]);
    let cases = [
        ("an authority", authority(&[is_authority()]), true),
        ("one that signs certificates", authority(&[is_authority(), usage(0b0000_0110)]), true),
        (
            "one that says something else of itself",
            authority(&[is_authority(), extension(14, false, &[4, 1, 1])]),
            true,
        ),
        ("one that signs no certificates", authority(&[is_authority(), usage(0b1000_0010)]), false),
        ("one for clients", authority(&[is_authority(), extension(37, false, &for_clients)]), false),
        ("one for some names", authority(&[is_authority(), extension(30, false, &names)]), false),
        ("one that demands something unknown", authority(&[is_authority(), extension(99, true, &[5, 0])]), false),
        ("one that says it twice", authority(&[is_authority(), is_authority()]), false),
        ("somebody who is none", authority(&[extension(19, true, &tlv(SEQUENCE, &[]))]), false),
        ("somebody who does not say", authority(&[extension(14, false, &[4, 1, 1])]), false),
        ("somebody of version 2", Content { version: version(1), ..authority(&[is_authority()]) }, false),
        ("somebody of version 1", Content { subject: "authority", ..client() }, false),
        ("an authority that is no more", Content { valid: BEFORE, ..authority(&[is_authority()]) }, false),
        ("an authority that is not yet", Content { valid: BEHIND, ..authority(&[is_authority()]) }, false),
    ];
    for (who, content, expected) in cases {
        let certificate = content.sign(&root, &root);
        // Webpki takes no root whose extensions it cannot read.
        let Ok(clients) = Clients::new(vec![certificate.clone()], Arc::new(rustls_graviola::default_provider())) else {
            assert!(!expected, "{who}");
            continue;
        };
        assert_eq!(verify(&clients, &client().sign(&key, &root), &[]).is_none(), expected, "{who}");
    }
    let roots = [&old, &root].map(|key| authority(&[is_authority()]).sign(key, key));
    for signer in [&old, &root] {
        assert_eq!(verify(&clients(&roots), &client().sign(&key, signer), &[]), None, "an authority with two keys");
    }
}

/// A side of a connection that shows one certificate and believes any.
#[derive(Debug)]
struct Side(Arc<CertifiedKey>);

impl ResolvesClientCert for Side {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ServerCertVerifier for Side {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// A certificate and a key, which may be that of another.
fn identity(certificate: &CertificateDer<'static>, pkcs8: &[u8]) -> Arc<CertifiedKey> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.to_vec()));
    let key = rustls_graviola::default_provider().key_provider.load_private_key(key).expect("it is a key");
    Arc::new(CertifiedKey::new(vec![certificate.clone()], key))
}

/// What the server says of a client's handshake, at the time that it is.
fn handshake(
    version: &'static SupportedProtocolVersion,
    clients: Clients,
    server: Arc<CertifiedKey>,
    client: Arc<CertifiedKey>,
) -> Result<(), Error> {
    let provider = Arc::new(rustls_graviola::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[version])?
        .with_client_cert_verifier(Arc::new(clients))
        .with_cert_resolver(Arc::new(Identity(server)));
    let side = Side(client);
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Side(side.0.clone())))
        .with_client_cert_resolver(Arc::new(side));
    let mut client = ClientConnection::new(Arc::new(client), "localhost".try_into().expect("it is a name"))?;
    let mut server = ServerConnection::new(Arc::new(server))?;
    while client.is_handshaking() || server.is_handshaking() || client.wants_write() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("a vector takes all");
        }
        server.read_tls(&mut &bytes[..]).expect("all is there");
        server.process_new_packets()?;
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("a vector takes all");
        }
        client.read_tls(&mut &bytes[..]).expect("all is there");
        client.process_new_packets()?;
    }
    Ok(())
}

#[test]
fn a_client_of_version_1_has_its_key() {
    let [root, key, other] = keys();
    let roots = [authority(&[is_authority()]).sign(&root, &root)];
    let certificate = client().sign(&key, &root);
    // Servers have no Ed25519 in TLS 1.2.
    let mut space = [0; 256];
    let own =
        SigningKey::<P256> { private_key: StaticPrivateKey::new_random().expect("the system has random numbers") };
    let server = identity(&roots[0], own.to_pkcs8_der(&mut space).expect("it fits"));
    for version in [&TLS12, &TLS13] {
        let shake = |key: &Ed25519SigningKey| {
            let mut space = [0; 128];
            let client = identity(&certificate, key.to_pkcs8_der(&mut space).expect("it fits"));
            handshake(version, clients(&roots), server.clone(), client)
        };
        assert_eq!(shake(&key), Ok(()), "{version:?}");
        assert_eq!(shake(&other), Err(Error::InvalidCertificate(CertificateError::BadSignature)), "{version:?}");
    }
}
