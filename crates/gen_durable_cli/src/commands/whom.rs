//! Which instance a command means: by its number, or by its business key.

use gen_durable::{Address, Anyone, Id};

/// An instance.
#[derive(Debug, clap::Args)]
pub(crate) struct Whom {
    /// Whoever holds this business key, in place of an id
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The tenant that the key belongs to
    #[arg(long, value_name = "NAME", requires = "key", default_value = "")]
    tenant: String,
}

impl Whom {
    pub(crate) fn is_by_key(&self) -> bool {
        self.key.is_some()
    }

    /// By key where one was given, else by this id.
    pub(crate) fn address(self, id: Option<i64>) -> Option<Anyone> {
        match (self.key, id) {
            (Some(key), _) => Some(Address::Key {
                key,
                tenant: self.tenant,
            }),
            (None, Some(id)) => Some(Address::Id(Id::from_raw(id))),
            (None, None) => None,
        }
    }
}

/// For the record.
pub(crate) fn named(to: &Anyone) -> String {
    match to {
        Address::Id(id) => format!("instance {}", id.raw()),
        Address::Key { key, tenant } if tenant.is_empty() => format!("key {key}"),
        Address::Key { key, tenant } => format!("key {key} of tenant {tenant}"),
    }
}
