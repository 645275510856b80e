//! TLS on both sides: our certificate for clients, and the check of the server's, by libpq's words.
//!
//! Both sides name the protocol (ALPN `postgresql`), as PostgreSQL 17 does: a client that begins
//! with TLS at once must, and a server of another protocol cannot be taken for Postgres.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
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
            builder.with_root_certificates(roots)
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
