//! What requests are signed with.

use graviola::signing::rsa::SigningKey;
use hmac::{Hmac, Mac};
use object_store::client::{CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, Signer, SigningAlgorithm};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use sha2::{Digest, Sha256};

type Result<T> = object_store::Result<T>;

/// The cryptography that the server has already.
#[derive(Debug)]
pub(crate) struct Crypto;

impl CryptoProvider for Crypto {
    fn digest(&self, algorithm: DigestAlgorithm) -> Result<Box<dyn DigestContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Finished { running: Some(Sha256::new()), done: Vec::new() })),
            _ => Err(failed("a digest other than SHA-256")),
        }
    }

    fn hmac(&self, algorithm: DigestAlgorithm, secret: &[u8]) -> Result<Box<dyn HmacContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => {
                let mac = Hmac::<Sha256>::new_from_slice(secret).map_err(|error| failed(&error.to_string()))?;
                Ok(Box::new(Finished { running: Some(mac), done: Vec::new() }))
            }
            _ => Err(failed("a code other than HMAC with SHA-256")),
        }
    }

    fn sign(&self, algorithm: SigningAlgorithm, pem: &[u8]) -> Result<Box<dyn Signer>> {
        match algorithm {
            SigningAlgorithm::RS256 => {}
            _ => return Err(failed("a signature other than RS256")),
        }
        // The words of these errors hold nothing of the key.
        let key = match PrivateKeyDer::from_pem_slice(pem) {
            Ok(PrivateKeyDer::Pkcs8(key)) => SigningKey::from_pkcs8_der(key.secret_pkcs8_der()),
            Ok(PrivateKeyDer::Pkcs1(key)) => SigningKey::from_pkcs1_der(key.secret_pkcs1_der()),
            Ok(_) => return Err(failed("the private key is none of RSA")),
            Err(error) => return Err(failed(&format!("the private key is not in PEM format: {error}"))),
        };
        Ok(Box::new(Rsa(key.map_err(|error| failed(&format!("the private key is none of RSA: {error:?}")))?)))
    }
}

fn failed(why: &str) -> object_store::Error {
    object_store::Error::Generic { store: "signature", source: why.into() }
}

/// A digest or code, while it is worked out and afterwards.
struct Finished<T> {
    running: Option<T>,
    done: Vec<u8>,
}

impl DigestContext for Finished<Sha256> {
    fn update(&mut self, data: &[u8]) {
        if let Some(running) = &mut self.running {
            Digest::update(running, data);
        }
    }

    fn finish(&mut self) -> Result<&[u8]> {
        if let Some(running) = self.running.take() {
            self.done = running.finalize().to_vec();
        }
        Ok(&self.done)
    }
}

impl HmacContext for Finished<Hmac<Sha256>> {
    fn update(&mut self, data: &[u8]) {
        if let Some(running) = &mut self.running {
            Mac::update(running, data);
        }
    }

    fn finish(&mut self) -> Result<&[u8]> {
        if let Some(running) = self.running.take() {
            self.done = running.finalize().into_bytes().to_vec();
        }
        Ok(&self.done)
    }
}

struct Rsa(SigningKey);

impl Signer for Rsa {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>> {
        let mut signature = vec![0; self.0.modulus_len_bytes()];
        let length =
            self.0.sign_pkcs1_sha256(&mut signature, message).map_err(|error| failed(&format!("{error:?}")))?.len();
        signature.truncate(length);
        Ok(signature)
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use graviola::signing::rsa::KeySize;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_and_codes_are_those_of_the_standards() {
        let mut digest = Crypto.digest(DigestAlgorithm::Sha256).unwrap();
        digest.update(b"a");
        digest.update(b"bc");
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(digest.finish().unwrap()), expected);
        assert_eq!(hex(digest.finish().unwrap()), expected);
        let mut code = Crypto.hmac(DigestAlgorithm::Sha256, b"Jefe").unwrap();
        code.update(b"what do ya want for nothing?");
        // RFC 4231, test case 2.
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex(code.finish().unwrap()), expected);
    }

    #[test]
    fn signatures_are_verified_by_the_public_key() {
        let key = SigningKey::generate(KeySize::Rsa2048).unwrap();
        let mut buffer = [0; 2048];
        let pem = to_pem("PRIVATE KEY", key.to_pkcs8_der(&mut buffer).unwrap());
        let signature = Crypto.sign(SigningAlgorithm::RS256, pem.as_bytes()).unwrap().sign(b"message").unwrap();
        key.public_key().verify_pkcs1_sha256(&signature, b"message").unwrap();
        for wrong in ["", "no pem", &to_pem("PRIVATE KEY", b"no key"), &to_pem("EC PRIVATE KEY", b"other")] {
            assert!(Crypto.sign(SigningAlgorithm::RS256, wrong.as_bytes()).is_err());
        }
    }

    fn to_pem(label: &str, der: &[u8]) -> String {
        let body = STANDARD.encode(der);
        let lines: Vec<&str> = body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
    }
}
