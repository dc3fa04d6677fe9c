//! Redacts URLs: the password of the user, and sensitive parameters of the query and the fragment.

use super::{REDACTED, Redaction, text};

/// Names of URL parameters that are credentials, although the same names are harmless elsewhere.
const PARAMETERS: [&str; 6] = ["key", "sig", "signature", "code", "x-amz-signature", "hmac"];

/// Returns the length of the URL at the start of a text, if the text begins with a URL. A URL ends
/// before white space, a quotation mark or an angle bracket.
pub(super) fn length(text: &str) -> Option<usize> {
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | ':');
    let run = text.find(|c| !is_scheme(c)).unwrap_or(text.len());
    let scheme = run.checked_sub(1)?;
    if !text.get(scheme..)?.starts_with("://")
        || !text.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        return None;
    }
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`' | '\\');
    let rest = text.get(scheme..)?;
    let url = rest.get(..rest.find(ends).unwrap_or(rest.len()))?;
    // A sentence may continue after the URL.
    Some(scheme + url.trim_end_matches([':', '.', ',', ';', ')', '!']).len())
}

/// Returns a URL with its sensitive parts redacted.
pub(super) fn redact(redaction: &Redaction, url: &str, depth: usize) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at_checked(authority_end).unwrap_or((rest, ""));
    let mut shown = format!("{scheme}://{}", with_hidden_user(scheme, authority));
    let query_at = rest.find(['?', '#']).unwrap_or(rest.len());
    let (path, parameters) = rest.split_at_checked(query_at).unwrap_or((rest, ""));
    shown.push_str(path);
    for piece in parameters.split_inclusive(['?', '#', '&', ';']) {
        let end = piece.trim_end_matches(['?', '#', '&', ';']).len();
        let (pair, separator) = piece.split_at_checked(end).unwrap_or((piece, ""));
        shown.push_str(&parameter(redaction, pair, depth));
        shown.push_str(separator);
    }
    shown
}

/// Hides the password of a user. A name without a password stays, except in HTTP URLs, where it is
/// often a token.
fn with_hidden_user(scheme: &str, authority: &str) -> String {
    let Some((user, host)) = authority.rsplit_once('@') else {
        return authority.to_owned();
    };
    match user.split_once(':') {
        Some((name, _)) => format!("{name}:{REDACTED}@{host}"),
        None if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") => {
            format!("{REDACTED}@{host}")
        }
        None => authority.to_owned(),
    }
}

fn parameter(redaction: &Redaction, pair: &str, depth: usize) -> String {
    let Some((name, value)) = pair.split_once('=') else {
        return pair.to_owned();
    };
    let (plain_name, plain_value) = (decoded(name), decoded(value));
    let is_credential = PARAMETERS
        .iter()
        .any(|known| plain_name.eq_ignore_ascii_case(known));
    let is_hidden = (is_credential && !value.is_empty())
        || redaction.hides(&plain_name, &plain_value)
        || text::redact(redaction, &plain_value, depth + 1) != plain_value;
    match is_hidden {
        true => format!("{name}={REDACTED}"),
        false => pair.to_owned(),
    }
}

/// Decodes the percent encoding of a part of a URL.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(byte) = rest.bytes().next() {
        let code = rest.get(1..3).filter(|_| byte == b'%');
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) => {
                bytes.push(code);
                rest = rest.get(3..).unwrap_or_default();
            }
            None => {
                let end = rest.ceil_char_boundary(1);
                bytes.extend(rest.bytes().take(end));
                rest = rest.get(end..).unwrap_or_default();
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
