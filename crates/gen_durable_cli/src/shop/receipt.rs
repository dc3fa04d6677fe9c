//! The receipt of a charge in the demo shop: a job in the separate queue `mail`.

use std::time::Duration;

use gen_durable::{Context, Id, Job, Policy, Queue, SECOND, StepError};
use serde::{Deserialize, Serialize};

use super::{Shop, a_moment, happens, order::Order};

/// The queue of receipts. Receipts have a separate queue, so that slow mail servers do not delay
/// orders.
pub(crate) const MAIL: Queue = Queue::new("mail");

/// The job that mails the receipt of one charge.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) order: Id<Order>,
    pub(crate) cents: u64,
}

impl Job for Receipt {
    const NAME: &'static str = "receipt";
    const QUEUE: Queue = MAIL;
    type App = Shop;
    type Output = String;

    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<String, StepError> {
        let number = cx.id().raw().unsigned_abs();
        tokio::time::sleep(a_moment("mail", number, 10, 40)).await;
        if cx.attempt() == 0 && happens("the mail server is away", number, 15) {
            return Err("the mail server is away".into());
        }
        // A real step would pass this idempotency key to the mail server. If the mail server
        // received the key twice, it would send the mail only once.
        Ok(cx.idempotency_key())
    }

    fn policy(&self) -> Policy {
        Policy {
            attempts: 8,
            backoff_first: Duration::from_millis(200),
            backoff_max: SECOND,
            ..Policy::default()
        }
    }
}

/// The number of commits of a settled receipt without retries.
pub(crate) const STRAIGHT_STEPS: i64 = 1;
