//! Tests of several builds and schema versions at the same time.

mod deploy_changes;
mod deploys;
mod evolution;
mod migrations;
