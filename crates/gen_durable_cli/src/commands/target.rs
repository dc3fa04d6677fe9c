//! Selects the instance that a command works on, by the id or by the key of the instance.

use gen_durable::{Address, Id, operate::UntypedAddress};

/// The instance with a key.
#[derive(Debug, clap::Args)]
pub(crate) struct TargetArgs {
    /// The key of the instance, in place of its id
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The tenant of the key
    #[arg(long, value_name = "NAME", requires = "key", default_value = "")]
    tenant: String,
}

impl TargetArgs {
    pub(crate) fn is_by_key(&self) -> bool {
        self.key.is_some()
    }

    /// Returns the address of the instance that a command works on: the key if the user gave
    /// `--key`, otherwise `id`.
    pub(crate) fn address(self, id: Option<i64>) -> Option<UntypedAddress> {
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

/// Describes the address of an instance, as the subject of an audit entry.
pub(crate) fn named(to: &UntypedAddress) -> String {
    match to {
        Address::Id(id) => format!("instance {}", id.raw()),
        Address::Key { key, tenant } if tenant.is_empty() => format!("key {key}"),
        Address::Key { key, tenant } => format!("key {key} of tenant {tenant}"),
    }
}
