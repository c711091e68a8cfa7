//! Clients' certificates that the server was given as they are, as OpenSSL takes them among those that sign others. That its
//! client has the key is checked elsewhere; here, that it may be used for that, and now.

use rustls::{
    CertificateError, ExtendedKeyPurpose,
    pki_types::{CertificateDer, UnixTime},
};
use x509_cert::{
    Certificate,
    der::{Decode, oid::db::rfc5280},
    ext::pkix::ExtendedKeyUsage,
};

use super::version_one::is_valid_at;

/// Checks a certificate that is trusted.
///
/// # Errors
/// It is not valid at `now`, or says that it is for something else than clients.
pub(super) fn verify(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), CertificateError> {
    let certificate = Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let content = certificate.tbs_certificate();
    is_valid_at(content.validity(), now)?;
    let usage = content.get_extension::<ExtendedKeyUsage>().map_err(|_| CertificateError::BadEncoding)?;
    let for_clients = [rfc5280::ID_KP_CLIENT_AUTH, rfc5280::ANY_EXTENDED_KEY_USAGE];
    match usage.is_none_or(|(_, usage)| usage.0.iter().any(|purpose| for_clients.contains(purpose))) {
        true => Ok(()),
        false => Err(CertificateError::InvalidPurposeContext {
            required: ExtendedKeyPurpose::ClientAuth,
            presented: Vec::new(),
        }),
    }
}
