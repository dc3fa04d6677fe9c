//! The schedules of an engine by name, and the code that decides what happens to a due timer.

use std::{collections::BTreeMap, fmt, panic::AssertUnwindSafe, sync::Arc};

use jiff::Timestamp;

use crate::{
    calendar::{Cycle, MisfireDecision, MisfirePolicy, Occurrence, decide},
    codec,
    error::Error,
    id::NAME_BYTES_MAX,
    new_instance::{IntoNewInstance, NewInstance},
    store::{
        connection::Connection,
        fault::Fault,
        schedule,
        timer::{DueTimer, Firing},
    },
};

/// Maximum length of the text of a cycle, in bytes.
const CYCLE_BYTES_MAX: usize = 1000;

type Make = Arc<dyn Fn(Occurrence) -> NewInstance + Send + Sync>;

#[derive(Clone)]
struct Plan {
    cycle: Cycle,
    make: Make,
}

/// All schedules that this engine can fire.
#[derive(Default, Clone)]
pub(crate) struct RegisteredSchedules(BTreeMap<String, Plan>);

impl RegisteredSchedules {
    pub(crate) fn add<B: IntoNewInstance>(
        &mut self,
        name: &str,
        cycle: Cycle,
        make: impl Fn(Occurrence) -> B + Send + Sync + 'static,
    ) -> Result<(), Error> {
        codec::check_name("a schedule's name", name, 1, NAME_BYTES_MAX).map_err(Error::invalid)?;
        cycle
            .check()
            .map_err(|why| Error::invalid(format!("the schedule {name:?} is invalid: {why}")))?;
        check_length(&cycle)?;
        let make: Make = Arc::new(move |occurrence| make(occurrence).into_new_instance().untyped());
        if self
            .0
            .insert(name.to_owned(), Plan { cycle, make })
            .is_some()
        {
            return Err(Error::invalid(format!(
                "the schedule {name:?} is named twice"
            )));
        }
        Ok(())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Registers the schedules of the code. A cycle that an operator has set stays in force, unless
    /// the cycle in the code has changed. An older build changes nothing while a newer build runs,
    /// so every build registers repeatedly: after a rollback, the older build may be the only build
    /// left.
    pub(crate) async fn register(&self, connection: &Connection) -> Result<(), Fault> {
        for (name, plan) in &self.0 {
            let (now, known) = schedule::known(connection, name).await?;
            let (cycle, missed) = (plan.cycle.to_string(), plan.cycle.missed_policy().name());
            let registered = schedule::register(
                connection,
                name,
                (&cycle, missed),
                now,
                plan.cycle.first_later(now),
            )
            .await?;
            let before = known.map_or_else(String::new, |known| known.cycle);
            match registered.as_str() {
                "known" => {}
                "older" => {
                    tracing::debug!(
                        schedule = name,
                        cycle,
                        "a newer build runs and has set {before}: that cycle stays in force"
                    )
                }
                "replaced" => tracing::warn!(
                    schedule = name,
                    cycle,
                    "the cycle in the code has changed: it replaces {before}, which an operator had set"
                ),
                _ => tracing::info!(schedule = name, cycle, "the schedule is {registered}"),
            }
        }
        Ok(())
    }

    /// Decides what happens to a due timer, by the time of the database. If this function returns
    /// an error, the row of the timer stays pending.
    pub(crate) fn decide(
        &self,
        timer: &DueTimer,
        now: Timestamp,
        payload_bytes_max: usize,
    ) -> Result<Firing, String> {
        let mut verdict = Firing {
            id: timer.id,
            due: timer.due,
            happens: true,
            next: None,
            remaining: None,
            missed: 0,
            new_instance: None,
        };
        if !timer.manual {
            let cycle: Cycle = timer
                .cycle
                .parse()
                .map_err(|error| format!("this build cannot parse its cycle: {error}"))?;
            let missed: MisfirePolicy = timer
                .missed
                .parse()
                .map_err(|_| format!("{:?} is not a misfire policy", timer.missed))?;
            let cycle = cycle.misfire(missed);
            let MisfireDecision {
                happens,
                next,
                missed,
            } = decide(
                &cycle,
                timer.anchor,
                timer.due,
                timer.remaining,
                timer.missed_count,
                now,
            );
            verdict.happens = happens;
            verdict.next = next.map(|next| next.due);
            verdict.remaining = next.and_then(|next| next.remaining);
            verdict.missed = missed;
        }
        if let (Some(name), true) = (&timer.schedule, verdict.happens) {
            let plan = self.0.get(name).ok_or("it is not registered here")?;
            let occurrence = Occurrence {
                due: timer.due,
                missed: timer.missed_count,
                manual: timer.manual,
            };
            let made = std::panic::catch_unwind(AssertUnwindSafe(|| (plan.make)(occurrence)));
            let new_instance = made.map_err(|_| {
                "the schedule's function panicked while it built the new instance".to_owned()
            })?;
            let mut new = new_instance.new.map_err(|error| error.to_string())?;
            new.resolve(now).map_err(|error| error.to_string())?;
            new.check(payload_bytes_max)
                .map_err(|error| error.to_string())?;
            verdict.new_instance = Some(new);
        }
        Ok(verdict)
    }
}

/// Checks that the text of a cycle fits into its column.
pub(crate) fn check_length(cycle: &Cycle) -> Result<(), Error> {
    let bytes = cycle.to_string().len();
    if bytes > CYCLE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a cycle of {bytes} bytes is too long: {CYCLE_BYTES_MAX} is the most"
        )));
    }
    Ok(())
}

impl fmt::Debug for RegisteredSchedules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.iter().map(|(name, plan)| (name, &plan.cycle)))
            .finish()
    }
}
