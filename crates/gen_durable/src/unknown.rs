//! Keeps fields of a stored state that this build does not know, when this build writes the state.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_ignored::Path;
use serde_json::value::RawValue;

/// Returns the new state together with those fields of the stored state that `T` ignored during
/// decoding. If the new state has a field of the same name, the new value wins. The function
/// searches only objects: it does not keep fields that `T` ignored inside a list element or an enum
/// variant.
///
/// The function decodes the stored state a second time, so callers call it only for a state that
/// they write.
pub(crate) fn keep<T: DeserializeOwned>(stored: &str, state: String) -> String {
    let mut ignored: Vec<Vec<String>> = Vec::new();
    let mut stored_json = serde_json::Deserializer::from_str(stored);
    let decoded: Result<T, _> =
        serde_ignored::deserialize(&mut stored_json, |path| ignored.extend(keys(&path)));
    if decoded.is_err() || ignored.is_empty() {
        return state;
    }
    let paths: Vec<&[String]> = ignored.iter().map(Vec::as_slice).collect();
    match merge(stored, &state, &paths) {
        // The path to a field of an enum variant does not contain the variant, so `merge` may
        // insert the field at a wrong level. If the merged state cannot be decoded, `keep` returns
        // the new state without the unknown fields.
        Some(merged) if serde_json::from_str::<T>(&merged).is_ok() => merged,
        _ => state,
    }
}

/// Returns the keys on the path to a field; `None` if the field is inside a list or an enum
/// variant.
fn keys(path: &Path<'_>) -> Option<Vec<String>> {
    match path {
        Path::Root => Some(Vec::new()),
        Path::Map { parent, key } => {
            let mut keys = keys(parent)?;
            keys.push(key.clone());
            Some(keys)
        }
        Path::Some { parent } | Path::NewtypeStruct { parent } => keys(parent),
        Path::Seq { .. } | Path::NewtypeVariant { .. } => None,
    }
}

/// Copies the fields at these paths from `stored` to `state`, as text, so that numbers of any size
/// stay unchanged. Returns `None` if one of the two is not an object.
fn merge(stored: &str, state: &str, paths: &[&[String]]) -> Option<String> {
    let stored: BTreeMap<String, &RawValue> = serde_json::from_str(stored).ok()?;
    let state: BTreeMap<String, &RawValue> = serde_json::from_str(state).ok()?;
    let mut merged: BTreeMap<&str, String> = state
        .iter()
        .map(|(key, value)| (key.as_str(), value.get().to_owned()))
        .collect();
    let mut inside: BTreeMap<&str, Vec<&[String]>> = BTreeMap::new();
    for path in paths {
        match path {
            [] => {}
            [key] => {
                if let Some(value) = stored.get(key) {
                    merged.entry(key).or_insert_with(|| value.get().to_owned());
                }
            }
            [key, rest @ ..] => inside.entry(key).or_default().push(rest),
        }
    }
    for (key, paths) in inside {
        if let (Some(stored), Some(state)) = (stored.get(key), state.get(key))
            && let Some(object) = merge(stored.get(), state.get(), &paths)
        {
            merged.insert(key, object);
        }
    }
    let fields = merged
        .into_iter()
        .map(|(key, value)| Some((key, RawValue::from_string(value).ok()?)));
    serde_json::to_string(&fields.collect::<Option<BTreeMap<_, _>>>()?).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashMap;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize, Default)]
    struct Inner {
        a: u8,
    }

    #[derive(Serialize, Deserialize)]
    enum Way {
        Post,
        Courier { a: u8 },
    }

    #[derive(Serialize, Deserialize)]
    struct State {
        #[serde(alias = "former")]
        name: String,
        inner: Option<Inner>,
        #[serde(default)]
        by_key: HashMap<String, Inner>,
        #[serde(default)]
        list: Vec<Inner>,
        way: Way,
    }

    fn kept(stored: &str, change: impl FnOnce(&mut State)) -> serde_json::Value {
        let mut state: State = serde_json::from_str(stored).unwrap();
        change(&mut state);
        serde_json::from_str(&keep::<State>(
            stored,
            serde_json::to_string(&state).unwrap(),
        ))
        .unwrap()
    }

    #[test]
    fn keep_copies_unknown_fields_of_objects_and_maps_into_the_new_state() {
        let stored = r#"{"former": "n", "way": "Post", "big": 340282366920938463463374607431768211455, "inner": {"a": 1, "b": [2]},
            "by_key": {"k": {"a": 1, "b": 2}, "gone": {"a": 1, "b": 2}}, "list": [{"a": 1, "b": 2}]}"#;
        let json = kept(stored, |state| {
            state.by_key.remove("gone");
            state.name = "m".into();
        });
        assert_eq!(json["inner"], serde_json::json!({"a": 1, "b": [2]}));
        assert_eq!(
            json["by_key"],
            serde_json::json!({"k": {"a": 1, "b": 2}}),
            "a removed entry is not restored"
        );
        assert_eq!(
            (&json["name"], &json["former"]),
            (&"m".into(), &serde_json::Value::Null),
            "an alias is known"
        );
        assert_eq!(
            json["list"],
            serde_json::json!([{"a": 1}]),
            "lists are not searched"
        );
        let state: State = serde_json::from_str(stored).unwrap();
        let text = keep::<State>(stored, serde_json::to_string(&state).unwrap());
        assert!(
            text.contains("340282366920938463463374607431768211455"),
            "{text}"
        );
    }

    #[test]
    fn keep_drops_the_unknown_fields_of_an_object_that_the_new_state_does_not_have() {
        let stored = r#"{"name": "n", "way": "Post", "inner": {"a": 1, "b": 2}}"#;
        assert_eq!(
            kept(stored, |state| state.inner = None)["inner"],
            serde_json::Value::Null
        );
    }

    #[test]
    fn keep_returns_a_decodable_state_if_a_field_inside_an_enum_variant_is_unknown() {
        let stored =
            r#"{"name": "n", "inner": null, "way": {"Courier": {"a": 1, "Courier": 2}}, "new": 1}"#;
        for way in [Way::Post, Way::Courier { a: 2 }] {
            let json = kept(stored, |state| state.way = way);
            assert!(serde_json::from_value::<State>(json).is_ok());
        }
    }

    #[test]
    fn keep_returns_the_new_state_unchanged_if_the_stored_state_has_no_unknown_fields() {
        let state = r#"{"a":2}"#.to_owned();
        assert_eq!(keep::<Inner>(r#"{"a": 1}"#, state.clone()), state);
        assert_eq!(keep::<u8>("1", "2".into()), "2");
    }
}
