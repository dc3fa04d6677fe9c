//! The HTTP handlers of the dashboard, one module per subject.

pub(crate) mod acts;
pub(crate) mod audit;
pub(crate) mod bulk;
pub(crate) mod health;
pub(crate) mod instance;
pub(crate) mod instances;
pub(crate) mod json;
pub(crate) mod lanes;
pub(crate) mod limits;
pub(crate) mod live;
pub(crate) mod projections;
pub(crate) mod queues;
pub(crate) mod rollups;
pub(crate) mod schedules;
pub(crate) mod session;
pub(crate) mod timers;
