//! Requests about one instance of any machine: signal, cancel and retry. Awaiting a request sends
//! it.

use std::{fmt, pin::Pin, rc::Rc};

use serde_json::value::RawValue;

use super::{KEY_BYTES_MAX, NAME_BYTES_MAX, Operate, UntypedAddress, check_target, named, target};
use crate::{
    client::{Delivery, send_signal::delivered},
    error::{Error, ErrorKind, storable},
    id::Status,
    pool::Pool,
    signal::Address,
    store::{
        connection::Connection,
        fault::Fault,
        inspect, operate,
        signal::{self, Answer, SignalTarget},
    },
};

type Sending<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// A request to send a signal with a JSON payload. Awaiting it sends the signal; see
/// [`Operate::signal`].
#[must_use = "nothing is sent until this is awaited"]
#[derive(Debug, Clone)]
pub struct SignalRequest {
    pub(super) operate: Operate,
    pub(super) to: UntypedAddress,
    pub(super) name: String,
    pub(super) payload: String,
    pub(super) once: Option<String>,
}

impl SignalRequest {
    /// Delivers the signal only once, however often callers send a signal with this dedup key; see
    /// `Settings::dedup_retention`.
    pub fn once(mut self, key: impl fmt::Display) -> Self {
        self.once = Some(key.to_string());
        self
    }

    async fn send(self) -> Result<Delivery, Error> {
        let SignalRequest {
            operate: Operate { pool },
            to,
            name,
            payload,
            once,
        } = self;
        named("a signal's name", &name, NAME_BYTES_MAX)?;
        let payload = super::json(&pool, "the signal", &payload)?;
        if let Some(once) = &once {
            named("a dedup key", once, KEY_BYTES_MAX)?;
        }
        let (to, called) = (target(to, None), name.clone());
        check_target(&to)?;
        let answer = pool
            .connections
            .apart(move |connection| async move {
                operate::deliver(&connection, &to, &called, payload.get(), once.as_deref()).await
            })
            .await?;
        pool.connections.wakes().iter().for_each(|wake| wake.wake());
        delivered(answer, &name)
    }
}

impl IntoFuture for SignalRequest {
    /// `Delivered` or `Duplicate`: a signal that was not delivered is an error.
    type Output = Result<Delivery, Error>;
    type IntoFuture = Sending<Delivery>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A request to cancel an instance. Awaiting it cancels the instance; see
/// [`Client::cancel`](crate::Client::cancel) and [`Operate::cancel`].
#[must_use = "nothing is cancelled until this is awaited"]
#[derive(Debug, Clone)]
pub struct CancelRequest {
    pool: Pool,
    to: SignalTarget,
    /// The address of the target, for errors.
    called: String,
    why: String,
    subtree: bool,
}

impl CancelRequest {
    /// Creates a request to cancel an instance of one of these machines, or of any machine.
    pub(crate) fn new<M>(
        pool: Pool,
        to: Address<M>,
        machines: Option<Vec<&'static str>>,
        why: &str,
    ) -> CancelRequest {
        CancelRequest {
            pool,
            called: match &to {
                Address::Id(id) => format!("instance {}", id.raw()),
                Address::Key { key, .. } => format!("key {key:?}"),
            },
            to: target(to, machines),
            why: storable(why),
            subtree: false,
        }
    }

    /// Cancels all unsettled descendants of the instance, too: from the top down, in pages of one
    /// transaction each, so that a tree of any size can be cancelled. The awaited request still
    /// returns whether the cancel of the instance itself came in time.
    ///
    /// The request then also fails if another transaction locks the row of a descendant for
    /// seconds. Instances that it has already cancelled stay cancelled; repeat the request to
    /// cancel the remaining descendants.
    pub fn subtree(mut self) -> Self {
        self.subtree = true;
        self
    }

    async fn send(self) -> Result<bool, Error> {
        let CancelRequest {
            pool,
            to,
            called,
            why,
            subtree,
        } = self;
        check_target(&to)?;
        let act = move |connection: Rc<Connection>| async move {
            signal::cancel(&connection, &to, &why, subtree).await
        };
        let answer = if subtree {
            pool.connections.apart(act).await?
        } else {
            pool.connections.call(act).await?
        };
        let answer = answer.map_err(|fault| fault.into_error("cancel an instance"))?;
        pool.connections
            .wakes()
            .iter()
            .for_each(|wake| wake.wake_claims());
        match answer {
            Answer::Done => Ok(true),
            Answer::NoTarget => Err(Error::new(
                ErrorKind::NoTarget,
                format!("cannot cancel {called}: no such instance"),
            )),
            _ => Ok(false),
        }
    }
}

impl IntoFuture for CancelRequest {
    /// Whether the cancel came in time: `false` if the instance had already settled.
    type Output = Result<bool, Error>;
    type IntoFuture = Sending<bool>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A request to retry an instance. Awaiting it makes the instance runnable; see [`Operate::retry`].
#[must_use = "nothing is retried until this is awaited"]
#[derive(Debug, Clone)]
pub struct RetryRequest {
    pub(super) operate: Operate,
    pub(super) id: i64,
    pub(super) step: Option<String>,
    pub(super) data: Option<String>,
}

impl RetryRequest {
    /// Continues the instance from this step instead of its current step.
    pub fn at_step(mut self, step: impl Into<String>) -> Self {
        self.step = Some(step.into());
        self
    }

    /// Gives the step of [`at_step`](RetryRequest::at_step) its data, as JSON.
    pub fn with_data(mut self, json: impl Into<String>) -> Self {
        self.data = Some(json.into());
        self
    }

    async fn send(self) -> Result<(), Error> {
        let RetryRequest {
            operate,
            id,
            step,
            data,
        } = self;
        match &step {
            Some(step) => named("a step's name", step, NAME_BYTES_MAX)?,
            None if data.is_some() => {
                return Err(Error::invalid(
                    "data belongs to a step: name the step with `at_step` as well",
                ));
            }
            None => {}
        }
        let data = data
            .map(|data| super::json(&operate.pool, "the step's data", &data))
            .transpose()?;
        let again = operate
            .pool
            .connections
            .apart(move |connection| async move {
                let data = data.as_deref().map(RawValue::get);
                let again = operate::retry(&connection, id, step.as_deref(), data).await?;
                // Reads the row of the instance only to explain why the database rejected the
                // retry.
                let row = if again.is_none() {
                    inspect::one(&connection, id).await?
                } else {
                    None
                };
                Ok::<_, Fault>((again, row))
            })
            .await?;
        match again {
            Ok((Some((queue, priority, from)), _)) => {
                operate.hint(queue, priority, from);
                Ok(())
            }
            Ok((None, None)) => Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no instance {id}"),
            )),
            Ok((None, Some(row))) if row.locked_by.is_some() && row.status == Status::Cancelled => {
                Err(Error::invalid(format!(
                    "instance {id} was cancelled and its step still runs: retry it after the step has ended or the lease of its worker has expired"
                )))
            }
            Ok((None, Some(row))) => Err(Error::invalid(format!(
                "instance {id} is {}: only a failed, cancelled or stuck instance can be retried",
                row.status
            ))),
            Err(fault) if fault.is_taken_key() => Err(Error::because(
                ErrorKind::KeyTaken,
                format!("instance {id} cannot be retried: another instance holds its key"),
                fault.message(),
            )),
            Err(fault) => Err(fault.into_error("retry an instance")),
        }
    }
}

impl IntoFuture for RetryRequest {
    type Output = Result<(), Error>;
    type IntoFuture = Sending<()>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
