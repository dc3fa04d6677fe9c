//! Connection URLs in the form that Postgres drivers parse.

use std::path::Path;

/// The default port of Postgres drivers. If the server has no TCP port, this number is part of the
/// file name of the Unix socket.
pub(crate) const DEFAULT_PORT: u16 = 5432;

/// Returns a connection URL that has the percent-encoded directory of the Unix socket in the
/// position of the host.
pub(crate) fn over_socket(dir: &Path, port: u16, database: &str) -> String {
    let host = encode(dir.as_os_str().as_encoded_bytes());
    let port = if port == DEFAULT_PORT {
        String::new()
    } else {
        format!(":{port}")
    };
    format!(
        "postgresql://postgres@{host}{port}/{}",
        encode(database.as_bytes())
    )
}

pub(crate) fn over_tcp(port: u16, password: &str, database: &str) -> String {
    format!(
        "postgresql://postgres:{}@127.0.0.1:{port}/{}",
        encode(password.as_bytes()),
        encode(database.as_bytes())
    )
}

fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(*byte))
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_contains_the_socket_directory_and_the_database_name_percent_encoded() {
        let url = over_socket(Path::new("/tmp/a b"), 5432, "my/db");
        assert_eq!(url, "postgresql://postgres@%2Ftmp%2Fa%20b/my%2Fdb");
        assert_eq!(
            over_socket(Path::new("/run"), 6000, "d"),
            "postgresql://postgres@%2Frun:6000/d"
        );
    }
}
