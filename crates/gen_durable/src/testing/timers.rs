//! Timers and schedules of a lab: the production statements, fired by the lab's clock.

use super::Lab;
use crate::{
    calendar::{Cycle, Occurrence},
    engine::timer_loop,
    limit::Limit,
    new_instance::IntoNewInstance,
    store::{
        limit,
        timer::{self, Range},
    },
};

impl<App: Send + Sync + 'static> Lab<App> {
    /// Starts an instance at every occurrence of a cycle, like
    /// [`EngineBuilder::schedule`](crate::engine::EngineBuilder::schedule).
    ///
    /// # Panics
    /// The schedule is invalid.
    #[allow(clippy::expect_used)]
    pub fn schedule<B: IntoNewInstance>(
        mut self,
        name: &str,
        cycle: Cycle,
        make: impl Fn(Occurrence) -> B + Send + Sync + 'static,
    ) -> Self {
        self.schedules
            .add(name, cycle, make)
            .expect("the schedule could not be registered");
        self.registered = tokio::sync::OnceCell::new();
        self
    }

    /// Registers a limit, as [`EngineBuilder::limit`](crate::engine::EngineBuilder::limit) does.
    /// Rates follow the clock of the lab.
    ///
    /// # Panics
    /// The bounds of the limit are invalid.
    #[allow(clippy::expect_used)]
    pub fn limit(mut self, limit: Limit) -> Self {
        limit.check().expect("the limit could not be registered");
        self.limits.push(limit);
        self.registered = tokio::sync::OnceCell::new();
        self
    }

    pub(super) async fn register_schedules_and_limits(&self) {
        let (schedules, limits) = (self.schedules.clone(), self.limits.clone());
        let register = || {
            self.call(move |connection| async move {
                limit::declare(&connection, &limits).await?;
                schedules.register(&connection).await
            })
        };
        self.registered.get_or_init(register).await;
    }

    /// Fires the timers and deadlines that are due. Returns their number.
    pub(super) async fn fire_due(&self) -> usize {
        let (schedules, limit) = (self.schedules.clone(), self.settings.payload_bytes_max);
        self.call(move |connection| async move {
            let (expired, _) = timer::expire(&connection, i32::MAX, Range::ALL).await?;
            let names = schedules.names();
            let (due, now) = timer::due(&connection, i32::MAX, Range::ALL, &names, &[]).await?;
            let decided = timer_loop::decide(&schedules, &due, now, limit);
            let done = timer_loop::fire_all(&connection, decided).await?;
            assert!(
                done.broken.is_empty(),
                "these timers cannot be fired: {:?}",
                done.broken
            );
            Ok(expired.len() + done.ended())
        })
        .await
    }
}
