//! The version of the schema.

use serde::Serialize;

/// The name of the schema that a pool uses unless the host names another schema.
pub const DEFAULT_SCHEMA: &str = "gen_durable";

/// The installed schema version, and the schema version of this build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MigrationStatus {
    /// The schema version in the database; 0 if the schema is not installed.
    pub installed: i32,
    /// The schema version that this build was made for.
    pub current: i32,
    /// The installed schema serves a build that was made for this schema version, and no older
    /// build.
    pub oldest_served: i32,
}
