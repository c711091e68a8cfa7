//! TLS on the ports of HTTP and gRPC: certificates from files, the handshake, and streams that may be
//! encrypted.

use std::{
    fs,
    io::{self, Write as _},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::listen::Stop;

mod clients;
mod own;
mod refusals;
#[cfg(test)]
mod tests;
mod version_one;

use clients::Clients;
use refusals::Refusals;

/// How long a client may take for the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(20);

/// What stands in the two forms of encrypted keys.
const ENCRYPTED: &[u8] = b"ENCRYPTED";

/// What the flags of one protocol say.
#[derive(Debug, Clone, Default)]
pub(crate) struct TlsFlags {
    pub enabled: bool,
    /// Whether clients have to show a certificate. Turns TLS on by itself.
    pub mutual: bool,
    pub certificate: String,
    pub key: String,
    /// Who signs the certificates of clients.
    pub root: String,
}

/// Opens connections of one port.
#[derive(Clone)]
pub(crate) enum Tls {
    Off,
    On(TlsAcceptor, Arc<Refusals>),
}

impl Tls {
    /// Reads the files that the flags of `protocol` ("grpc" or "http") name. `alpn` is what is spoken inside.
    ///
    /// # Errors
    /// A file is missing or holds something else; the text names flag and file.
    pub fn new(flags: &TlsFlags, protocol: &str, alpn: &[u8]) -> Result<Self, String> {
        if !flags.enabled && !flags.mutual {
            return Ok(Tls::Off);
        }
        check_processor().map_err(|missing| format!("--{protocol}-use-ssl needs a processor with {missing}"))?;
        let provider = Arc::new(rustls_graviola::default_provider());
        let flag = |name: &str| format!("--{protocol}-{name}");
        let certificates = certificates(&flag("server-cert"), &flags.certificate)?;
        let key = private_key(&flag("server-key"), &flags.key)?;
        let key = provider.key_provider.load_private_key(key).map_err(|error| {
            format!(
                "{} '{}': {error}. Keys are of RSA with 2048 bits and more, of ECDSA on P-256 or P-384, or of Ed25519",
                flag("server-key"),
                flags.key
            )
        })?;
        let identity = Arc::new(CertifiedKey::new(certificates, key));
        if let Err(error @ rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) =
            identity.keys_match()
        {
            let (cert, key) = (&flags.certificate, &flags.key);
            return Err(format!("the key '{key}' is not the one of the certificate '{cert}': {error}"));
        }
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match flags.mutual {
            false => builder.with_no_client_auth(),
            true => {
                let roots = self::certificates(&flag("root-cert"), &flags.root)?;
                let clients = Clients::new(roots, provider)
                    .map_err(|error| format!("{} '{}': {error}", flag("root-cert"), flags.root))?;
                builder.with_client_cert_verifier(Arc::new(clients))
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(Identity(identity)));
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok(Tls::On(TlsAcceptor::from(Arc::new(config)), Arc::new(Refusals::new(protocol))))
    }

    /// Serves a connection with `serve`, after the handshake where there is one.
    pub async fn serve<F: Future<Output = ()>>(
        self,
        stream: TcpStream,
        mut stop: Stop,
        serve: impl FnOnce(Stream, Stop) -> F,
    ) {
        let stream = match self {
            Tls::Off => Stream::Plain(stream),
            Tls::On(acceptor, refusals) => {
                let peer = stream.peer_addr();
                let handshake = tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream));
                let opened = tokio::select! {
                    opened = handshake => opened,
                    () = stop.requested() => return,
                };
                match opened {
                    Ok(Ok(stream)) => Stream::Tls(Box::new(stream)),
                    // Many look in this way whether anybody listens.
                    Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        return tracing::debug!("a connection was refused: {error}");
                    }
                    Ok(Err(error)) => return refusals.tell(peer, &error),
                    Err(_) => return refusals.tell(peer, &"its handshake took too long"),
                }
            }
        };
        serve(stream, stop).await;
    }
}

/// The one certificate of the port, whatever name the client asks for. A certificate of X.509's first version is
/// good enough here: whether to accept it is the client's decision.
#[derive(Debug)]
struct Identity(Arc<CertifiedKey>);

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

fn read(flag: &str, path: &str) -> Result<Vec<u8>, String> {
    if path.is_empty() {
        return Err(format!("TLS needs {flag}, a file in PEM format"));
    }
    fs::read(path).map_err(|error| format!("{flag} '{path}' cannot be read: {error}"))
}

fn certificates(flag: &str, path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(flag, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("{flag} '{path}' holds no certificate in PEM format")),
        Err(error) => Err(format!("{flag} '{path}' holds no certificate in PEM format: {error}")),
    }
}

fn private_key(flag: &str, path: &str) -> Result<PrivateKeyDer<'static>, String> {
    let pem = read(flag, path)?;
    if pem.windows(ENCRYPTED.len()).any(|text| text == ENCRYPTED) {
        return Err(format!(
            "{flag} '{path}' holds a key that a passphrase encrypts: write it without one, such as by `openssl pkey`"
        ));
    }
    PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|error| format!("{flag} '{path}' holds no private key in PEM format without a passphrase: {error}"))
}

/// What connections to servers elsewhere are encrypted with: they trust whom the system trusts, or the certificates in the
/// files that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
///
/// # Errors
/// The processor cannot encrypt.
#[cfg(feature = "cloud-repositories")]
pub(crate) fn client() -> Result<rustls::ClientConfig, String> {
    check_processor().map_err(|missing| format!("encrypted connections need a processor with {missing}"))?;
    let provider = Arc::new(rustls_graviola::default_provider());
    let system = rustls_native_certs::load_native_certs();
    for error in system.errors {
        tracing::warn!("a certificate of the system cannot be read: {error}");
    }
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(system.certs);
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(builder.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth())
}

/// What the cryptography asks of the processor, which it would find out by a panic. Names what is missing.
fn check_processor() -> Result<(), &'static str> {
    #[cfg(target_arch = "x86_64")]
    let needed = [
        ("AES", is_x86_feature_detected!("aes")),
        ("PCLMULQDQ", is_x86_feature_detected!("pclmulqdq")),
        ("BMI1", is_x86_feature_detected!("bmi1")),
        ("ADX", is_x86_feature_detected!("adx")),
        ("AVX2", is_x86_feature_detected!("avx2")),
    ];
    #[cfg(target_arch = "aarch64")]
    let needed = [
        ("AES", std::arch::is_aarch64_feature_detected!("aes")),
        ("PMULL", std::arch::is_aarch64_feature_detected!("pmull")),
        ("SHA2", std::arch::is_aarch64_feature_detected!("sha2")),
    ];
    needed.iter().find(|(_, is_there)| !is_there).map_or(Ok(()), |(name, _)| Err(name))
}

/// A connection, encrypted or not.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Sends what the socket takes at once, before the connection ends for a reason.
    pub fn try_write_last(&mut self, bytes: &[u8]) {
        // The connection ends in any case.
        let _ = match self {
            Stream::Plain(stream) => stream.try_write(bytes).map(drop),
            Stream::Tls(stream) => {
                let (socket, session) = stream.get_mut();
                session.writer().write_all(bytes).and_then(|()| session.write_tls(&mut AtOnce(socket)).map(drop))
            }
        };
    }
}

/// Writes without waiting.
struct AtOnce<'a>(&'a TcpStream);

impl io::Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Calls the method of whichever stream it is.
macro_rules! delegate {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Stream::Tls(stream) => {
                let $stream = Pin::new(stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, stream => stream.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_shutdown(cx))
    }
}
