//! Bad input, bad code, bad databases: an error that says what to do, nothing lost, no attempt burned.

mod code;
mod database;
mod dates;
mod messages;
mod rows;
mod values;
