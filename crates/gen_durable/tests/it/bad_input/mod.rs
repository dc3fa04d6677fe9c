//! Invalid input, faulty user code, unusable databases: each is an error that says what to do,
//! loses nothing and uses up no attempt.

mod code;
mod database;
mod dates;
mod messages;
mod rows;
mod values;
