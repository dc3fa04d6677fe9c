//! Tests invalid input, faulty user code and unusable databases. Each of them causes an error that
//! says what to do; no instance is lost, and neither an outage nor a row that cannot be decoded
//! uses up an attempt.

mod code;
mod database;
mod dates;
mod messages;
mod rows;
mod values;
