//! Tests of what a caller, a step or an operator can say: instances, children, signals, keys,
//! cancels, history, the SQL API, transactions of drivers, the testing kit.

mod audit;
mod basics;
mod bulk;
mod bulk_conditions;
mod cancel_token;
mod cancel_tree;
mod children;
mod errors;
mod history;
mod keys;
mod lab;
mod limits;
mod new_instance;
mod operate;
mod outbox;
mod search;
mod signal_delivery;
mod signals;
mod sql_surface;
mod sqlx_driver;
mod tokens;
mod ui;
