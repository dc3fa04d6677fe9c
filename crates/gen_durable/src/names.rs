//! Names of closed sets: an enum without fields, and one word for each of its variants. Rows, JSON
//! and command lines contain these words.

use std::fmt;

/// The error of parsing a name: no variant of the enum has this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    kind: &'static str,
    name: String,
}

impl UnknownName {
    /// Creates the error for a name that no variant of `kind` has; `kind` says in words what the
    /// name names, such as `status`.
    pub(crate) fn new(kind: &'static str, name: &str) -> UnknownName {
        UnknownName {
            kind,
            name: name.to_owned(),
        }
    }

    /// Returns the unknown name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} {:?}", self.kind, self.name)
    }
}

impl std::error::Error for UnknownName {}

/// Gives each variant of an enum its name: `ALL`, `name`, `Display`, `FromStr`, `Serialize` and
/// `Deserialize`.
macro_rules! names {
    ($type:ident, $kind:literal, { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values, in the order of their declaration.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// Returns the name of the value, as rows and JSON contain it.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::names::UnknownName;

            fn from_str(name: &str) -> Result<$type, Self::Err> {
                match name {
                    $($name => Ok($type::$variant),)+
                    _ => Err($crate::names::UnknownName::new($kind, name)),
                }
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                name.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use names;
