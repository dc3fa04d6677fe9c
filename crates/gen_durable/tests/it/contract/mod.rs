//! Tests of what users and developers rely on: plans and costs of statements, the schema, and the
//! rules for sources and documents.

mod cost;
mod house;
mod house_documents;
mod house_files;
mod house_layers;
mod house_types;
mod house_words;
pub(crate) mod plans;
mod plans_retention;
mod schema;
