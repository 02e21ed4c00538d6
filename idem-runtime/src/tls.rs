//! TLS for HTTP clients: the program's cryptography, or ring; the system's authorities.

use std::sync::Arc;

use rustls_platform_verifier::BuilderVerifierExt;

/// For a client without a certificate of its own.
pub(crate) fn client() -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = rustls::crypto::CryptoProvider::get_default()
        .map_or_else(|| Arc::new(rustls::crypto::ring::default_provider()), Arc::clone);
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(BuilderVerifierExt::with_platform_verifier)?
        .with_no_client_auth())
}
