#![doc = include_str!("../../../README.md")]

// Types that a user implements or returns from a step.
mod calendar;
mod children;
mod context;
mod error;
mod event;
mod history;
mod id;
mod job;
mod lane;
mod machine;
mod new_instance;
mod policy;
mod projection;
mod send_signal;
mod signal;
mod transition;

// Calls that a user makes from outside a step.
mod admin;
mod audit;
mod client;
mod log;
mod operate;
mod settings;
mod timetable;

// The modules of the engine. They contain no SQL.
mod codec;
mod engine;
mod unknown;
mod wake;

// The store. This module contains all SQL of the crate.
mod store;

#[cfg(feature = "testing")]
mod testing;

#[cfg(feature = "testing")]
pub use testing::{DrainStats, Lab, LabDatabase};

pub use admin::{Projections, RunRequest, RunsRequest};
pub use audit::{Audit, AuditEntry};
pub use calendar::{Cycle, Due, MisfirePolicy, Occurrence, Period};
pub use children::{Child, ChildrenCounts, ChildrenPage};
pub use client::{Client, Enqueue, Enqueued, Settled};
pub use context::Context;
pub use engine::{Engine, EngineBuilder, Has, Health, InstanceFailure, RunningEngine};
pub use error::{Error, Failure, OrFatal, StepError, fatal, postpone};
pub use event::{Event, EventRow, Events, Record, RecordAll, Recorded};
pub use history::HistoryPolicy;
pub use id::{Id, Queue, Status};
pub use jiff::Timestamp;
pub use job::{Job, Run};
pub use lane::{Lane, LaneKey};
pub use log::{Log, TrimLog};
pub use machine::{Data, Machine, Stored, shape, variant_names};
pub use new_instance::{IntoNewInstance, NewInstance};
pub use operate::{Operate, UntypedAddress, UntypedInstance};
pub use policy::{DAY, HOUR, MINUTE, Policy, SECOND};
pub use projection::{Digest, OnVersionChange, PoisonPolicy, Projection, ProjectionContext};
pub use send_signal::{
    Delivery, OutgoingSignal, SendSignal, SignalAll, SignalOrStart, SignalOrStarted, signal_to,
};
pub use settings::{Retention, Settings};
pub use signal::{Address, KeyScope, ReceivedSignal, Signal, Signals};
pub use store::{
    audit::AuditRecord,
    doctor::{Snapshot, TableInfo},
    explain::{Blocker, Explanation, PendingChild, Relations},
    family::{ChildInfo, Children, InboxSignal},
    flow::Edge,
    history::{HistoryCursor, HistoryEntry},
    inspect::{Count, Filter, Inspect, Instance, NoWorkerFor, QueueInfo, WorkerInfo},
    keyed::{KeyFilter, LaneInfo, LanePage, PartitionInfo},
    migrate::{MigrationStatus, Migrations},
    oversight::ScopeFilter,
    pool::Pool,
    pulse::{Arrived, Backlog, Estimate, FailureGroup, Finished},
    runs::{ProjectionRun, RunKind},
    scopes::{ProjectionFailure, ProjectionInfo},
    search::{Page, Search, SearchHit},
    step_tx::StepTx,
    target::DEFAULT_SCHEMA,
    tx::{Transaction, Tx},
};
pub use timetable::{
    Findings, Forecast, ScheduleInfo, ScheduleRun, Schedules, TimerCursor, TimerFilter, TimerInfo,
    TimerPage, TimerSelection, Timers,
};
pub use transition::{
    Outcome, Sleep, Spawn, Transition, WaitFor, Waiting, done, fail, next, retry_after, sleep,
    sleep_until, spawn, wait_for,
};

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
