//! Tests invalid input, faulty user code and unusable databases. Each causes an error that says
//! what to do; no instance is lost, and no attempt is used up.

mod code;
mod database;
mod dates;
mod messages;
mod rows;
mod values;
