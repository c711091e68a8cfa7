//! Certificates of X.509's first version: a name, a key, a period and who signed them, and no extension that could say
//! what they are for.
//!
//! Nothing in such a certificate forbids it to sign others, so none here may: it is the client's own, signed by a
//! certificate of the third version that the server was started with and that says that it is an authority. There is no
//! chain. What is written otherwise than DER writes it, and what leaves a doubt, is refused.

use rustls::{
    CertificateError,
    pki_types::{CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime},
};
use webpki::RawPublicKeyEntity;
use x509_cert::{
    AlgorithmIdentifier, Certificate, SubjectPublicKeyInfo, TbsCertificate, Version,
    der::{self, Decode, Encode, oid::AssociatedOid},
    ext::pkix::{BasicConstraints, ExtendedKeyUsage, KeyUsage, NameConstraints},
    name::Name,
    time::Validity,
};

/// A certificate that may sign those of version 1.
#[derive(Debug)]
pub(super) struct Authority {
    subject: Name,
    validity: Validity,
    key: SubjectPublicKeyInfoDer<'static>,
}

impl Authority {
    /// `None` if `root` is not of version 3, does not say that it is an authority, or restricts in a way that is not
    /// checked here what it signs for.
    pub fn new(root: &CertificateDer<'_>) -> Option<Self> {
        let root = Certificate::from_der(root).ok()?;
        let root = root.tbs_certificate();
        let may_sign = root.version() == Version::V3 && !root.subject().is_empty() && says_authority(root).ok()?;
        may_sign.then_some(())?;
        Some(Authority {
            subject: root.subject().clone(),
            validity: *root.validity(),
            key: key_of(root.subject_public_key_info()).ok()?,
        })
    }
}

fn says_authority(root: &TbsCertificate) -> der::Result<bool> {
    let is_authority = root.get_extension::<BasicConstraints>()?.is_some_and(|(_, constraints)| constraints.ca);
    let signs = root.get_extension::<KeyUsage>()?.is_none_or(|(_, usage)| usage.key_cert_sign());
    let understood = [BasicConstraints::OID, KeyUsage::OID];
    let restricting = [NameConstraints::OID, ExtendedKeyUsage::OID];
    let is_restricted = root.extensions().into_iter().flatten().any(|extension| {
        let id = &extension.extn_id;
        restricting.contains(id) || (extension.critical && !understood.contains(id))
    });
    Ok(is_authority && signs && !is_restricted)
}

/// A client's certificate of version 1.
pub(super) struct VersionOne {
    certificate: Certificate,
    /// What was signed.
    signed: Vec<u8>,
    key: SubjectPublicKeyInfoDer<'static>,
}

impl VersionOne {
    /// # Errors
    /// It is none, or not as DER writes it.
    pub fn parse(bytes: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let certificate = Certificate::from_der(bytes).map_err(|_| CertificateError::BadEncoding)?;
        let content = certificate.tbs_certificate();
        let has_only_its_own = content.version() == Version::V1
            && content.issuer_unique_id().is_none()
            && content.subject_unique_id().is_none()
            && content.extensions().is_none();
        // What was read is what was signed, and nothing was overlooked.
        let is_der = certificate.to_der().is_ok_and(|again| again == bytes.as_ref());
        if !has_only_its_own || !is_der || content.signature() != certificate.signature_algorithm() {
            return Err(CertificateError::BadEncoding);
        }
        let signed = content.to_der().map_err(|_| CertificateError::BadEncoding)?;
        let key = key_of(content.subject_public_key_info()).map_err(|_| CertificateError::BadEncoding)?;
        Ok(VersionOne { certificate, signed, key })
    }

    /// Checks that one of `authorities` signed it, and that both are valid at `now`.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn verify(
        &self,
        authorities: &[Authority],
        now: UnixTime,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), CertificateError> {
        let content = self.certificate.tbs_certificate();
        is_valid_at(content.validity(), now)?;
        let issuer = content.issuer();
        // One that names itself as its issuer could pass for the authority.
        if content.subject() == issuer {
            return Err(CertificateError::UnknownIssuer);
        }
        let id = id_of(self.certificate.signature_algorithm()).map_err(|_| CertificateError::BadEncoding)?;
        let algorithms: Vec<_> =
            algorithms.iter().copied().filter(|algorithm| algorithm.signature_alg_id().as_ref() == id).collect();
        let signature = self.certificate.signature().as_bytes().ok_or(CertificateError::BadEncoding)?;
        // An authority that renewed its key is there twice.
        let mut refused = CertificateError::UnknownIssuer;
        for authority in authorities.iter().filter(|authority| authority.subject == *issuer) {
            let verified = is_valid_at(&authority.validity, now)
                .and_then(|()| verify_signature(&authority.key, &algorithms, &self.signed, signature));
            match verified {
                Ok(()) => return Ok(()),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// The client's public key.
    pub fn into_key(self) -> SubjectPublicKeyInfoDer<'static> {
        self.key
    }
}

/// Checks the `signature` of `message` by the one of `algorithms` that is for such a `key`.
///
/// # Errors
/// It is wrong, or none of them is.
pub(super) fn verify_signature(
    key: &SubjectPublicKeyInfoDer<'_>,
    algorithms: &[&dyn SignatureVerificationAlgorithm],
    message: &[u8],
    signature: &[u8],
) -> Result<(), CertificateError> {
    let key = RawPublicKeyEntity::try_from(key).map_err(|_| CertificateError::BadEncoding)?;
    for algorithm in algorithms {
        match key.verify_signature(*algorithm, message, signature) {
            Ok(()) => return Ok(()),
            Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)) => {}
            Err(_) => return Err(CertificateError::BadSignature),
        }
    }
    // What rustls sends a client whose signature it cannot check.
    Err(CertificateError::BadSignature)
}

/// Checks that a period holds `now`.
///
/// # Errors
/// It has ended, or not begun.
pub(super) fn is_valid_at(validity: &Validity, now: UnixTime) -> Result<(), CertificateError> {
    let second = now.as_secs();
    if second < validity.not_before.to_unix_duration().as_secs() {
        return Err(CertificateError::NotValidYet);
    }
    if second > validity.not_after.to_unix_duration().as_secs() {
        return Err(CertificateError::Expired);
    }
    Ok(())
}

fn key_of(key: &SubjectPublicKeyInfo) -> der::Result<SubjectPublicKeyInfoDer<'static>> {
    key.to_der().map(SubjectPublicKeyInfoDer::from)
}

/// The algorithm as webpki names it: without the tag and the length around it.
fn id_of(algorithm: &AlgorithmIdentifier) -> der::Result<Vec<u8>> {
    let mut id = algorithm.oid.to_der()?;
    if let Some(parameters) = &algorithm.parameters {
        id.extend(parameters.to_der()?);
    }
    Ok(id)
}
