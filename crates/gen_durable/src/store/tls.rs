//! TLS of connections to Postgres: the options of libpq in a connection string, and the
//! verification of the certificate of a server.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, ErrorKind};

/// Removes the TLS options of libpq from the connection string that the driver does not know.
/// `sslmode=verify-full` and `verify-ca` become `require`, because this crate verifies the
/// certificate of a server with `require` too, and `allow` becomes `prefer`. Returns the changed
/// string, and the file name of `sslrootcert=FILE`.
pub(super) fn extract_tls_options(url: &str) -> Result<(String, Option<String>), Error> {
    let url = url
        .replace("sslmode=verify-full", "sslmode=require")
        .replace("sslmode=verify-ca", "sslmode=require")
        .replace("sslmode=allow", "sslmode=prefer");
    let Some(start) = url.find("sslrootcert=") else {
        return Ok((url, None));
    };
    let (before, rest) = url.split_at(start);
    let value = rest.trim_start_matches("sslrootcert=");
    let end = value.find(['&', ' ']).unwrap_or(value.len());
    let (file, after) = value.split_at(end);
    let file = file
        .trim_matches('\'')
        .replace("%2F", "/")
        .replace("%2f", "/");
    let left = format!("{}{}", before.trim_end_matches(['&', ' ']), after);
    let left = left.trim_end_matches('?').replace("?&", "?");
    Ok((left, Some(file)))
}

/// Builds the TLS settings of a target. With `verifies`, a connection needs a certificate that the
/// root certificates vouch for; without, it accepts every certificate.
pub(super) fn make_tls(
    root_certificate: Option<&str>,
    verifies: bool,
) -> Result<MakeRustlsConnect, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::because(ErrorKind::Internal, "TLS cannot be set up", e))?;
    let builder = match verifies {
        true => builder.with_root_certificates(roots(root_certificate)?),
        false => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
    };
    Ok(MakeRustlsConnect::new(builder.with_no_client_auth()))
}

/// Reads the root certificates of a file, or those of the operating system.
fn roots(root_certificate: Option<&str>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let Some(file) = root_certificate else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let read = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| {
            Error::because(
                ErrorKind::Invalid,
                format!("cannot read the certificates in sslrootcert={file}"),
                e,
            )
        })?;
    roots.add_parsable_certificates(read);
    Ok(roots)
}

/// Accepts every certificate, for `sslmode=prefer`. The connection is encrypted, but an attacker in
/// the network can take the place of the server.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_with_sslmode_verify_full_or_sslrootcert_of_libpq_is_accepted() {
        let (url, file) = extract_tls_options(
            "postgres://h/db?sslmode=verify-full&sslrootcert=%2Fca.pem&connect_timeout=3",
        )
        .unwrap_or_default();
        assert_eq!(url, "postgres://h/db?sslmode=require&connect_timeout=3");
        assert_eq!(file.as_deref(), Some("/ca.pem"));
        let (url, file) =
            extract_tls_options("postgres://h/db?sslrootcert=/ca.pem").unwrap_or_default();
        assert_eq!(
            (url.as_str(), file.as_deref()),
            ("postgres://h/db", Some("/ca.pem"))
        );
    }
}
