//! Whom TLS trusts: the authorities that this machine does, or those of a file and nobody else.
//!
//! Invariants: a file that names no authority is refused when the settings are checked, and so is
//! any file where there is no TLS to use it; there is no way to trust everybody.

use std::path::Path;

use reqwest::ClientBuilder;

/// Lets a client trust only the authorities of a PEM file.
#[cfg(feature = "tls")]
pub(crate) fn only(client: ClientBuilder, file: &Path) -> Result<ClientBuilder, String> {
    let wrong = |why: String| format!("the authorities in {}: {why}", file.display());
    let text = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
    let named = reqwest::Certificate::from_pem_bundle(&text);
    let named = named.map_err(|error| wrong(error.to_string()))?;
    if named.is_empty() {
        return Err(wrong("there are none".to_owned()));
    }
    Ok(client.tls_certs_only(named))
}

/// Without TLS nobody is trusted.
#[cfg(not(feature = "tls"))]
pub(crate) fn only(_: ClientBuilder, file: &Path) -> Result<ClientBuilder, String> {
    Err(format!(
        "the authorities in {} are for TLS, which the feature `tls` brings",
        file.display()
    ))
}
