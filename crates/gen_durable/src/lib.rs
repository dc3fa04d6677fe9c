#![doc = include_str!("../../../README.md")]

// Types that a user implements or returns from a step.
mod new_instance;
mod calendar;
mod children;
mod context;
mod error;
mod event;
mod id;
mod job;
mod lane;
mod send_signal;
mod machine;
mod policy;
mod projection;
mod signal;
mod history;
mod transition;

// Calls that a user makes from outside a step.
mod admin;
mod audit;
mod client;
mod log;
mod operate;
mod settings;
mod timetable;

// The engine. It contains no SQL.
mod codec;
mod engine;
mod unknown;
mod wake;

// The store. All SQL of the crate is below this module.
mod store;

#[cfg(feature = "testing")]
mod testing;

#[cfg(feature = "testing")]
pub use testing::{Lab, LabDatabase, DrainStats};

pub use admin::{Projections, RunRequest, RunsRequest};
pub use audit::{Audit, AuditEntry};
pub use new_instance::{NewInstance, IntoNewInstance};
pub use calendar::{Cycle, Due, MisfirePolicy, Occurrence, Period};
pub use children::{Child, ChildrenCounts, ChildrenPage};
pub use client::{Client, Enqueue, Enqueued, Settled};
pub use context::Context;
pub use engine::{Engine, EngineBuilder, Has, Health, InstanceFailure, RunningEngine};
pub use error::{Error, Failure, OrFatal, StepError, fatal, postpone};
pub use event::{Event, EventRow, Events, Record, RecordAll, Recorded};
pub use id::{Id, Queue, Status};
pub use jiff::Timestamp;
pub use job::{Job, Run};
pub use lane::{Lane, LaneKey};
pub use send_signal::{Delivery, OutgoingSignal, SendSignal, SignalAll, SignalOrStart, SignalOrStarted, signal_to};
pub use log::Log;
pub use machine::{Data, Machine, Stored, shape, variant_names};
pub use operate::{UntypedAddress, UntypedInstance, Operate};
pub use policy::{DAY, HOUR, MINUTE, Policy, SECOND};
pub use projection::{Digest, OnVersionChange, PoisonPolicy, ProjectionContext, Projection};
pub use settings::{Retention, Settings};
pub use signal::{Address, ReceivedSignal, KeyScope, Signal, Signals};
pub use store::{
    audit::AuditRecord,
    doctor::{Snapshot, TableInfo},
    explain::{Blocker, Explanation, PendingChild, Relations},
    family::{ChildInfo, Children, InboxSignal},
    flow::Edge,
    inspect::{Count, Filter, Inspect, Instance, QueueInfo, NoWorkerFor, WorkerInfo},
    migrate::{MigrationStatus, Migrations},
    oversight::ScopeFilter,
    pool::Pool,
    pulse::{Arrived, Backlog, Estimate, Finished, FailureGroup},
    runs::{ProjectionRun, RunKind},
    scopes::{ProjectionFailure, ProjectionInfo},
    search::{SearchHit, Page, Search},
    step_tx::StepTx,
    history::{HistoryEntry, HistoryCursor},
    target::DEFAULT_SCHEMA,
    keyed::{KeyFilter, LaneInfo, LanePage, PartitionInfo},
    tx::{Transaction, Tx},
};
pub use history::HistoryPolicy;
pub use timetable::{
    Findings, Forecast, ScheduleInfo, ScheduleRun, Schedules, TimerFilter, TimerInfo, TimerCursor,
    TimerPage, Timers, TimerSelection,
};
pub use transition::{Outcome, Sleep, Spawn, Transition, WaitFor, Waiting, done, next, retry_after, sleep, sleep_until, spawn, fail, wait_for};

/// Compiles and runs the programs of the guides together with the documentation tests.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../../docs/guide/children.md")]
    mod children {}
    #[doc = include_str!("../../../docs/guide/jobs.md")]
    mod jobs {}
    #[doc = include_str!("../../../docs/guide/lanes.md")]
    mod lanes {}
    #[doc = include_str!("../../../docs/guide/machines.md")]
    mod machines {}
    #[doc = include_str!("../../../docs/guide/operating.md")]
    mod operating {}
    #[doc = include_str!("../../../docs/guide/projections.md")]
    mod projections {}
    #[doc = include_str!("../../../docs/guide/signals.md")]
    mod signals {}
    #[doc = include_str!("../../../docs/guide/testing.md")]
    mod testing {}
    #[doc = include_str!("../../../docs/guide/timers.md")]
    mod timers {}
    #[doc = include_str!("../../../docs/guide/transactions.md")]
    mod transactions {}
    #[doc = include_str!("../../../docs/guide/upgrading.md")]
    mod upgrading {}
}
