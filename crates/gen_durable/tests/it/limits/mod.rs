//! Tests of limits: how many steps run at the same time or begin in a period, in all workers.

mod concurrency;
mod rates;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use gen_durable::{Context, Job, StepError, machine::Limits};
use serde::{Deserialize, Serialize};

/// The steps that run now, by key; the largest numbers in total and for a key; and all starts.
#[derive(Default, Clone)]
struct Calls(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    running: HashMap<String, usize>,
    most: usize,
    most_of_a_key: usize,
    starts: Vec<(String, u64)>,
}

impl Calls {
    fn enter(&self, key: &str, n: u64) {
        let mut seen = self.0.lock().unwrap();
        *seen.running.entry(key.to_owned()).or_default() += 1;
        seen.most = seen.most.max(seen.running.values().sum());
        seen.most_of_a_key = seen.most_of_a_key.max(seen.running[key]);
        seen.starts.push((key.to_owned(), n));
    }

    fn leave(&self, key: &str) {
        *self.0.lock().unwrap().running.get_mut(key).unwrap() -= 1;
    }

    /// Returns the largest number of steps that ran at the same time, in total and with one key.
    fn most(&self) -> (usize, usize) {
        let seen = self.0.lock().unwrap();
        (seen.most, seen.most_of_a_key)
    }

    fn starts(&self) -> Vec<(String, u64)> {
        self.0.lock().unwrap().starts.clone()
    }

    /// Returns how many steps have begun.
    fn count(&self) -> usize {
        self.0.lock().unwrap().starts.len()
    }
}

/// A call of an API that allows some calls at once in total, and some for each tenant.
#[derive(Serialize, Deserialize)]
struct Fetch {
    tenant: String,
    n: u64,
    weight: u32,
}

impl Job for Fetch {
    const NAME: &'static str = "fetch";
    type App = Calls;
    type Output = ();
    fn limits(&self) -> Limits {
        Limits::of("api").key(&self.tenant).weight(self.weight)
    }
    async fn run(&self, cx: &mut Context<'_, Self>) -> Result<(), StepError> {
        cx.app().enter(&self.tenant, self.n);
        // The step yields to other tasks, so that another step could begin now.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        cx.app().leave(&self.tenant);
        Ok(())
    }
}

fn fetch(tenant: &str, n: u64) -> Fetch {
    Fetch {
        tenant: tenant.into(),
        n,
        weight: 1,
    }
}
