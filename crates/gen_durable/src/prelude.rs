//! The names that a file with a machine needs: `use gen_durable::prelude::*;`.
//!
//! A name that a file imports explicitly takes precedence over this glob import. So
//! `use tokio::time::sleep;` beside the prelude compiles, and the file then writes
//! `gen_durable::sleep(..)` in its steps.
//!
//! ```
//! use gen_durable::prelude::*;
//! use tokio::time::sleep;
//!
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Poll;
//! # #[derive(serde::Serialize, serde::Deserialize, Default)]
//! # enum Step { #[default] Ask, AskAgain }
//! # impl Machine for Poll {
//! #     const NAME: &'static str = "poll";
//! #     type App = ();
//! #     type Step = Step;
//! #     type Output = ();
//! async fn step(&mut self, at: Step, _: &mut Context<'_, Self>) -> Outcome<Self> {
//!     sleep(SECOND).await; // tokio's: holds this worker for a second
//!     Ok(gen_durable::sleep(HOUR).then(Step::AskAgain)) // a due time in the row
//! }
//! # }
//! ```

pub use crate::{
    Client, Context, DAY, Engine, HOUR, Id, Job, MINUTE, Machine, NewInstance, OrFatal, Outcome,
    Pool, SECOND, Signal, StepError, done, fail, fatal, next, retry_after, sleep, spawn, wait_for,
};
