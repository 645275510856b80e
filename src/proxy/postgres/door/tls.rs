//! TLS on both sides: our certificate for clients, and the check of the server's, by libpq's words.
//!
//! Both sides name the protocol (ALPN `postgresql`), as PostgreSQL 17 does: a client that begins
//! with TLS at once must, and a server of another protocol cannot be taken for Postgres.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{
    VerifierBuilderError, WebPkiServerVerifier, verify_server_name,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::config::{ClientTls, UpstreamTls, UpstreamTlsMode};

/// The protocol's name (PostgreSQL docs 54.2.10).
pub(super) const ALPN: &[u8] = b"postgresql";

/// The door cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidDoor(pub String);

fn invalid(what: &str, path: &Path, error: &dyn std::fmt::Display) -> InvalidDoor {
    InvalidDoor(format!("{what} {path:?} cannot be used: {error}"))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, InvalidDoor> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|error| invalid("the certificate", path, &error))?;
    match found.is_empty() {
        true => Err(invalid("the certificate", path, &"there is none in it")),
        false => Ok(found),
    }
}

/// What accepts clients.
pub(super) fn acceptor(config: &ClientTls) -> Result<TlsAcceptor, InvalidDoor> {
    let chain = certificates(&config.cert)?;
    let key = PrivateKeyDer::from_pem_file(&config.key)
        .map_err(|error| invalid("the key", &config.key, &error))?;
    let unusable = |error: Error| invalid("the certificate", &config.cert, &error);
    let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(server)))
}

/// What connects to the server, where TLS is used at all.
pub(super) fn connector(config: &UpstreamTls) -> Result<TlsConnector, InvalidDoor> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| InvalidDoor(format!("TLS cannot be used: {error}")))?;
    let mut client = match (config.mode, &config.ca) {
        (UpstreamTlsMode::VerifyFull, Some(ca)) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(ca)? {
                let added = roots.add(certificate);
                added.map_err(|error| invalid("the authority", ca, &error))?;
            }
            let verifier = Verified::new(certificates(ca)?, roots, provider);
            let verifier = verifier.map_err(|error| invalid("the authority", ca, &error))?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier))
        }
        (UpstreamTlsMode::VerifyFull, None) => {
            let reason = "verify-full needs to know who may have signed: `ca`";
            return Err(InvalidDoor(reason.to_owned()));
        }
        _ => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified(provider))),
    }
    .with_no_client_auth();
    client.alpn_protocols = vec![ALPN.to_vec()];
    Ok(TlsConnector::from(Arc::new(client)))
}

/// Takes what the authorities have signed, and each of their own certificates for the server that
/// it names: what `openssl req -x509` makes is both, and OpenSSL takes it so.
#[derive(Debug)]
struct Verified {
    own: Vec<CertificateDer<'static>>,
    inner: Arc<WebPkiServerVerifier>,
}

impl Verified {
    fn new(
        own: Vec<CertificateDer<'static>>,
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Verified, VerifierBuilderError> {
        let roots = Arc::new(roots);
        let inner = WebPkiServerVerifier::builder_with_provider(roots, provider).build()?;
        Ok(Verified { own, inner })
    }
}

impl ServerCertVerifier for Verified {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let inner = &self.inner;
        let verified =
            inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // Only this: one that has expired, say, is refused.
            Err(error) if is_authority(&error) && self.own.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Whether a certificate is refused for being an authority's.
fn is_authority(error: &Error) -> bool {
    // The library gives this one as text alone.
    matches!(error, Error::InvalidCertificate(CertificateError::Other(other))
        if other.to_string().contains("CaUsedAsEndEntity"))
}

/// Takes any certificate: `prefer` and `require` keep listeners out, and nobody who can take the
/// server's place (PostgreSQL docs 32.19.1).
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
