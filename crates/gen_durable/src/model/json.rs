//! Serializes fields in the forms that the HTTP API and the command line share.

/// Serializes a struct as its fields and further keys, each with the value that a method of the
/// struct returns. The struct derives `Serialize` with `#[serde(remote = "Self")]`.
macro_rules! serialize_with_methods {
    ($Type:ident, { $($key:ident: $Value:ty = $method:ident),+ $(,)? }) => {
        impl serde::Serialize for $Type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                struct Fields<'a>(&'a $Type);
                impl serde::Serialize for Fields<'_> {
                    fn serialize<S: serde::Serializer>(
                        &self,
                        serializer: S,
                    ) -> Result<S::Ok, S::Error> {
                        $Type::serialize(self.0, serializer)
                    }
                }
                #[derive(serde::Serialize)]
                struct Shown<'a> {
                    #[serde(flatten)]
                    fields: Fields<'a>,
                    $($key: $Value,)+
                }
                serde::Serialize::serialize(
                    &Shown {
                        fields: Fields(self),
                        $($key: self.$method(),)+
                    },
                    serializer,
                )
            }
        }
    };
}
pub(super) use serialize_with_methods;

/// Converts between durations and numbers of seconds.
pub(crate) mod seconds {
    use std::time::Duration;

    use serde::{Serialize, Serializer};

    /// Returns the duration of this many seconds. A negative number or NaN becomes zero, and a
    /// number beyond the range of `Duration` becomes the largest duration.
    pub(crate) fn duration(seconds: f64) -> Duration {
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
    }

    /// Serializes a duration as a number of seconds. A missing duration becomes `null`.
    pub(crate) fn optional<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        duration
            .map(|duration| duration.as_secs_f64())
            .serialize(serializer)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn numbers_of_seconds_outside_the_range_of_a_duration_become_its_bounds() {
            assert_eq!(duration(1.5), Duration::from_millis(1500));
            assert_eq!(duration(-1.0), Duration::ZERO);
            assert_eq!(duration(f64::NAN), Duration::ZERO);
            assert_eq!(duration(f64::INFINITY), Duration::MAX);
        }
    }
}

/// Serializes an id as a string.
pub(super) mod id_text {
    use serde::{Serialize, Serializer};

    pub(crate) fn required<S: Serializer>(id: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub(crate) fn optional<S: Serializer>(
        id: &Option<i64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        id.map(|id| id.to_string()).serialize(serializer)
    }
}

/// Serializes a text that contains JSON as that JSON, with the digits that the text contains. A
/// missing text becomes `null`.
pub(super) mod json_text {
    use serde::{Serialize, Serializer, ser::Error};
    use serde_json::value::RawValue;

    pub(crate) fn required<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(text)
            .map_err(|error| Error::custom(format!("a column contains invalid JSON: {error}")))?
            .serialize(serializer)
    }

    pub(crate) fn optional<S: Serializer>(
        text: &Option<String>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        required(text.as_deref().unwrap_or("null"), serializer)
    }
}
