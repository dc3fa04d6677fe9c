//! Encoding and decoding: how the state and the step of a machine are stored as JSON in a row, and
//! the checks for values that a row cannot store.

use serde::{
    Serialize,
    de::{DeserializeOwned, IntoDeserializer},
};
use serde_json::value::RawValue;

use crate::error::{StepError, fatal};

/// The longest delay that a statement receives: a hundred years. `delay_seconds` shortens longer
/// delays to this value.
const DELAY_SECONDS_MAX: f64 = 100.0 * 366.0 * 86_400.0;

/// The deepest nesting of JSON that a row may store. serde_json does not read more than 127 levels,
/// and the codec wraps the data of a step in one more level.
const NESTING_MAX: usize = 120;

/// Returns the name and the data of a step. The default form of an enum in serde *is* `"name"` or
/// `{"name": data}`.
pub(crate) fn encode_step<S: Serialize>(step: &S) -> Result<(String, Option<String>), StepError> {
    let text = serde_json::to_string(step).map_err(fatal)?;
    if text.starts_with('"') {
        return Ok((serde_json::from_str(&text).map_err(fatal)?, None));
    }
    let not_an_enum =
        || fatal("a step must be an enum in serde's default form: \"name\" or {\"name\": ..}");
    let map: std::collections::BTreeMap<String, &RawValue> =
        serde_json::from_str(&text).map_err(|_| not_an_enum())?;
    let mut entries = map.into_iter();
    match (entries.next(), entries.next()) {
        (Some((name, data)), None) => Ok((name, Some(data.get().to_owned()))),
        _ => Err(not_an_enum()),
    }
}

/// Decodes the step of an instance from the columns of its row.
pub(crate) fn decode_step<S: DeserializeOwned>(
    name: &str,
    data: Option<&str>,
) -> Result<S, String> {
    let decoded = match data {
        None => {
            S::deserialize(IntoDeserializer::<serde::de::value::Error>::into_deserializer(name))
                .map_err(|error| error.to_string())
        }
        Some(data) => serde_json::to_string(name)
            .and_then(|name| serde_json::from_str(&format!("{{{name}:{data}}}")))
            .map_err(|error| error.to_string()),
    };
    decoded.map_err(|error| format!("step {name:?} cannot be decoded by this build: {error}"))
}

/// Decodes the step that an upgrade returned. Returns it together with its data in the form of the
/// row. If `data` is null, the step is either a unit variant without data, or a variant with the
/// data null: `Maybe(None)`.
pub(crate) fn decode_upgraded_step<S: DeserializeOwned>(
    name: &str,
    data: &serde_json::Value,
) -> Result<(S, Option<String>), String> {
    let text = (!data.is_null()).then(|| data.to_string());
    match decode_step(name, text.as_deref()) {
        Err(error) if text.is_none() => {
            let step = decode_step(name, Some("null")).map_err(|_| error)?;
            Ok((step, Some("null".to_owned())))
        }
        decoded => Ok((decoded?, text)),
    }
}

/// Encodes a state or result as JSON that a row can store.
pub(crate) fn encode<T: Serialize + DeserializeOwned>(
    what: &str,
    value: &T,
    bytes_max: usize,
) -> Result<String, StepError> {
    let text = serde_json::to_string(value)
        .map_err(|error| fatal(format!("{what} cannot be encoded: {error}")))?;
    check_json(what, &text, bytes_max)?;
    check_nulls(what, &text, || {
        serde_json::from_str::<T>(&text)
            .map(drop)
            .map_err(|error| error.to_string())
    })?;
    Ok(text)
}

/// Checks that a value with a null in its JSON can be decoded from that JSON. JSON has no NaN and
/// no infinity: serde_json writes them as null, and a number cannot be read from null. This check
/// fails the step that produced the value, instead of the next step that reads it.
pub(crate) fn check_nulls(
    what: &str,
    text: &str,
    read_back: impl FnOnce() -> Result<(), String>,
) -> Result<(), StepError> {
    if !text.contains("null") {
        return Ok(());
    }
    read_back().map_err(|error| {
        fatal(format!(
            "{what} cannot be read back (for example, NaN and infinity are written as null): {error}"
        ))
    })
}

/// Checks JSON for contents that Postgres would reject. This check fails a single step instead of a
/// whole batch of step results.
pub(crate) fn check_json(what: &str, text: &str, bytes_max: usize) -> Result<(), StepError> {
    if text.len() > bytes_max {
        let message = format!(
            "{what} is {} bytes of JSON, the limit is {bytes_max}: store large values elsewhere and only a reference here, or raise `payload_bytes_max`",
            text.len()
        );
        return Err(fatal(message));
    }
    if nesting(text) > NESTING_MAX {
        return Err(fatal(format!(
            "{what} is nested deeper than {NESTING_MAX} levels, and cannot be read back"
        )));
    }
    if holds_nul(text) {
        return Err(fatal(format!(
            "{what} contains a NUL character (\\u0000), which Postgres cannot store"
        )));
    }
    Ok(())
}

/// Checks that a row can store a name or key.
pub(crate) fn check_name(
    what: &str,
    text: &str,
    bytes_min: usize,
    bytes_max: usize,
) -> Result<(), String> {
    if text.len() < bytes_min {
        return Err(format!("{what} must not be empty"));
    }
    if text.len() > bytes_max {
        return Err(format!(
            "{what} is {} bytes long, the limit is {bytes_max}",
            text.len()
        ));
    }
    if text.contains('\0') {
        return Err(format!(
            "{what} contains a NUL character, which Postgres cannot store"
        ));
    }
    Ok(())
}

/// Returns the delay in seconds, at most a hundred years, so that adding it to a date does not
/// overflow.
pub(crate) fn delay_seconds(delay: std::time::Duration) -> f64 {
    delay.as_secs_f64().min(DELAY_SECONDS_MAX)
}

/// Returns how deep a JSON text is nested. Returns 0 for a short text without reading it, because
/// every level needs two characters.
fn nesting(text: &str) -> usize {
    if text.len() <= 2 * NESTING_MAX {
        return 0;
    }
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'[' | b'{') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Returns whether a JSON text has an escaped NUL: `\u0000` after an even number of other
/// backslashes.
fn holds_nul(text: &str) -> bool {
    text.match_indices("\\u0000").any(|(at, _)| {
        let before = text.get(..at).unwrap_or_default();
        before.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 0
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Step {
        Unit,
        Empty {},
        Named { a: u64 },
        Tuple(u8, String),
        Wrapped(Option<u8>),
    }

    #[test]
    fn a_step_is_unchanged_by_encoding_and_decoding() {
        let all = [
            Step::Unit,
            Step::Empty {},
            Step::Named { a: u64::MAX },
            Step::Tuple(1, "\"{".into()),
            Step::Wrapped(None),
        ];
        for step in all {
            let (name, data) = encode_step(&step).unwrap();
            assert_eq!(decode_step::<Step>(&name, data.as_deref()).unwrap(), step);
        }
        assert_eq!(encode_step(&Step::Unit).unwrap(), ("unit".into(), None));
        assert_eq!(
            encode_step(&Step::Wrapped(None)).unwrap(),
            ("wrapped".into(), Some("null".into()))
        );
        assert!(
            decode_step::<Step>("gone", None)
                .unwrap_err()
                .contains("gone")
        );
        assert!(encode_step(&5).is_err() && encode_step(&[1]).is_err());
    }

    #[test]
    fn the_nesting_of_json_counts_brackets_only_outside_strings() {
        let filler = " ".repeat(2 * NESTING_MAX);
        assert_eq!(
            nesting(&format!(
                r#"{{"a": [[], "[[[\"[[["], "b": {{"c": [1]}}}}{filler}"#
            )),
            3
        );
        assert_eq!(
            nesting(&format!("{}{}", "[".repeat(130), "]".repeat(130))),
            130
        );
    }

    #[test]
    fn holds_nul_finds_an_escaped_nul_and_ignores_u0000_after_an_escaped_backslash() {
        assert!(holds_nul(&serde_json::to_string("a\0b").unwrap()));
        assert!(holds_nul(r#""\\\u0000""#));
        assert!(!holds_nul(&serde_json::to_string("\\u0000").unwrap()));
    }
}
