//! Which clients are believed, where they have to show a certificate.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, UnixTime},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use super::{
    own,
    version_one::{self, Authority, VersionOne},
};

/// What rustls checks, and beside it certificates of X.509's first version, which rustls does not read and OpenSSL writes
/// unless it is told what to write. Everything is asked of rustls first; only where it says that it does not know the
/// version is the certificate looked at here.
#[derive(Debug)]
pub(super) struct Clients {
    rustls: Arc<dyn ClientCertVerifier>,
    /// What was given as who signs. One of them may be a client's own certificate.
    given: Vec<CertificateDer<'static>>,
    authorities: Vec<Authority>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Clients {
    /// Clients whose certificates lead to one of `roots`.
    ///
    /// # Errors
    /// One of `roots` is no certificate.
    pub fn new(roots: Vec<CertificateDer<'static>>, provider: Arc<CryptoProvider>) -> Result<Self, String> {
        let authorities = roots.iter().filter_map(Authority::new).collect();
        let given = roots.clone();
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add(root).map_err(|error| match error {
                Error::InvalidCertificate(why) => format!("one of its certificates cannot be read: {why}"),
                error => error.to_string(),
            })?;
        }
        let algorithms = provider.signature_verification_algorithms;
        let rustls = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Clients { rustls, given, authorities, algorithms })
    }
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.rustls.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // A certificate that is trusted itself has no chain, and needs none: one that signed itself, or one of many.
        if self.given.iter().any(|given| given == end_entity) {
            own::verify(end_entity, now)?;
            return Ok(ClientCertVerified::assertion());
        }
        match self.rustls.verify_client_cert(end_entity, intermediates, now) {
            // The version may be that of a certificate in between: those are never looked at here.
            Err(error) if is_version(&error) => {
                let certificate = VersionOne::parse(end_entity)?;
                certificate.verify(&self.authorities, now, self.algorithms.all)?;
                Ok(ClientCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.rustls.verify_tls12_signature(message, certificate, signed) {
            Err(error) if is_version(&error) => {
                let key = VersionOne::parse(certificate)?.into_key();
                let of_scheme = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
                // Without the curve: in TLS 1.2 it is none of the scheme's.
                let algorithms = of_scheme.map_or(&[][..], |(_, algorithms)| algorithms);
                version_one::verify_signature(&key, algorithms, message, signed.signature())?;
                Ok(HandshakeSignatureValid::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.rustls.verify_tls13_signature(message, certificate, signed) {
            Err(error) if is_version(&error) => {
                let key = VersionOne::parse(certificate)?.into_key();
                verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
            }
            verified => verified,
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.rustls.supported_verify_schemes()
    }
}

/// Whether a certificate was refused for its version.
fn is_version(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        return false;
    };
    matches!(other.0.downcast_ref(), Some(webpki::Error::UnsupportedCertVersion))
}
