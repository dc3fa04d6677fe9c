//! Transitions: how a step ends, and the effects that the engine commits together with the step
//! result.

use std::{fmt, marker::PhantomData, time::Duration};

use crate::{
    calendar::{Cycle, Due},
    client::outgoing_signal::{OutgoingSignal, signal_to},
    error::StepError,
    event::Event,
    machine::Machine,
    model::event::NewEvent,
    new_instance::{IntoNewInstance, NewInstance},
    signal::{Address, Signal, Signals},
    transaction::StepTx,
};

/// The return type of a step: a transition, or an error. An error returned by `?` means "try
/// again".
pub type Outcome<M> = Result<Transition<M>, StepError>;

/// The transition that a step has decided on. It has no effect until the step returns it and the
/// engine has committed it.
#[must_use = "a transition does nothing until the step returns it"]
pub struct Transition<M: Machine> {
    pub(crate) action: NextAction<M>,
    /// Instances that the commit of the step enqueues.
    pub(crate) new_instances: Vec<NewInstance>,
    /// Signals that the commit of the step sends.
    pub(crate) signals: Vec<OutgoingSignal>,
    /// Repeating timers of the wait: each enqueues its instance again and again until the wait
    /// ends.
    pub(crate) repeats: Vec<(Cycle, NewInstance)>,
    /// Events that the commit of the step records.
    pub(crate) events: Vec<Result<NewEvent, StepError>>,
    /// The transaction of the step itself, in which the engine writes the step result.
    pub(crate) within: Option<StepTx>,
}

pub(crate) enum NextAction<M: Machine> {
    Next(M::Step),
    Sleep(Due, M::Step),
    Retry(Duration),
    Wait {
        names: Vec<&'static str>,
        then: M::Step,
        deadline: Deadline<M>,
    },
    Spawn {
        children: Vec<NewInstance>,
        any: bool,
        fail_if_taken: bool,
        then: M::Step,
        deadline: Deadline<M>,
    },
    Done(M::Output),
    Fail(String),
}

/// The time at which a wait ends without its signal or children, and the step that runs then.
pub(crate) type Deadline<M> = Option<(Due, <M as Machine>::Step)>;

impl<M: Machine> Transition<M> {
    fn of(action: NextAction<M>) -> Self {
        Transition {
            action,
            new_instances: Vec::new(),
            signals: Vec::new(),
            repeats: Vec::new(),
            events: Vec::new(),
            within: None,
        }
    }

    /// Enqueues another instance in the commit of this transition (an outbox).
    pub fn and_enqueue(mut self, also: impl IntoNewInstance) -> Self {
        self.new_instances.push(also.into_new_instance().untyped());
        self
    }

    /// Sends a signal in the commit of this transition (an outbox). If the target does not exist or
    /// has settled, the step fails with an error.
    pub fn and_signal<S: Signal>(self, to: impl Into<Address<S::To>>, signal: S) -> Self {
        self.and_outgoing_signal(signal_to(to, signal))
    }

    /// Sends a signal with options in the commit of this transition:
    /// `done(()).and_outgoing_signal(signal_to(order, Paid { cents }).once("evt-7"))`. A duplicate
    /// of an earlier signal is not an error.
    pub fn and_outgoing_signal(mut self, signal: OutgoingSignal) -> Self {
        self.signals.push(signal);
        self
    }

    /// Records an event in the commit of this transition, in the log of the instance's tenant.
    pub fn and_record<E: Event>(mut self, event: E) -> Self {
        self.events.push(NewEvent::new(String::new(), &event));
        self
    }

    /// Records an event in the commit of this transition, in the log of another tenant.
    pub fn and_record_for<E: Event>(mut self, tenant: impl fmt::Display, event: E) -> Self {
        self.events.push(NewEvent::new(tenant.to_string(), &event));
        self
    }

    /// Commits this transition inside the transaction of the step itself (from
    /// [`Context::begin`](crate::Context::begin), or with the feature `sqlx` from the host's own
    /// pool). The step's own writes and its transition are then a single commit. Within this
    /// database the step takes effect exactly once.
    ///
    /// If the worker has lost its claim before the commit, the engine rolls the transaction back.
    pub fn within(mut self, tx: impl Into<StepTx>) -> Self {
        self.within = Some(tx.into());
        self
    }
}

impl<M: Machine> fmt::Debug for Transition<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.action {
            NextAction::Next(_) => "next",
            NextAction::Sleep(..) => "sleep",
            NextAction::Retry(_) => "retry_after",
            NextAction::Wait { .. } => "wait_for",
            NextAction::Spawn { .. } => "spawn",
            NextAction::Done(_) => "done",
            NextAction::Fail(_) => "fail",
        })
    }
}

/// Returns a transition that continues the instance with `step` at once.
pub fn next<M: Machine>(step: M::Step) -> Transition<M> {
    Transition::of(NextAction::Next(step))
}

/// Runs the same step again after `delay`. The commit raises [`attempt`](crate::Context::attempt).
/// It raises [`failures`](crate::Context::failures) only if [`handle`](crate::Machine::handle)
/// returned the transition, because then the step has failed.
pub fn retry_after<M: Machine>(delay: Duration) -> Transition<M> {
    Transition::of(NextAction::Retry(delay))
}

/// Returns a transition that settles the instance as done, with a result.
pub fn done<M: Machine>(output: M::Output) -> Transition<M> {
    Transition::of(NextAction::Done(output))
}

/// Returns a transition that settles the instance as failed, with a reason.
pub fn fail<M: Machine>(reason: impl Into<String>) -> Transition<M> {
    Transition::of(NextAction::Fail(reason.into()))
}

/// Sleeps until a timer in the database is due; no process holds the timer: `sleep(3 *
/// DAY).then(Step::Remind)`. A duration counts from the commit. A
/// [`Period`](crate::schedule::Period) counts from the time at which the step began, on the
/// calendar of its time zone. A date is absolute; a date in the past is due at once.
pub fn sleep(due: impl Into<Due>) -> Sleep {
    Sleep(due.into())
}

/// A sleep that still needs its next step.
#[must_use = "name the step to run after the sleep: `.then(step)`"]
#[derive(Debug, Clone)]
pub struct Sleep(Due);

impl Sleep {
    /// Sets the step that runs when the sleep is over.
    pub fn then<M: Machine>(self, step: M::Step) -> Transition<M> {
        Transition::of(NextAction::Sleep(self.0, step))
    }
}

/// Waits until one of these signals is in the inbox: `wait_for::<(Payment,
/// Abandon)>().then(Step::Paid)`.
///
/// If a matching signal is already in the inbox, the instance continues at once. Signals that were
/// in the inbox when this run of the step began do not count, so a step can collect several signals
/// by waiting repeatedly.
pub fn wait_for<S>() -> WaitFor<S> {
    WaitFor(PhantomData)
}

/// A wait that still needs its next step.
#[must_use = "name the step to run when a signal arrives: `.then(step)`"]
#[derive(Debug)]
pub struct WaitFor<S>(PhantomData<S>);

impl<S> WaitFor<S> {
    /// Sets the step that runs when one of the signals arrives.
    pub fn then<M: Machine>(self, step: M::Step) -> Waiting<M>
    where
        S: Signals<M>,
    {
        Waiting(Transition::of(NextAction::Wait {
            names: S::names(),
            then: step,
            deadline: None,
        }))
    }
}

/// Spawns children: `spawn(items).then(Step::Join)` runs `Join` when every child has settled,
/// failed children included.
pub fn spawn<C: IntoNewInstance>(children: impl IntoIterator<Item = C>) -> Spawn {
    let children = children
        .into_iter()
        .map(|child| child.into_new_instance().untyped())
        .collect();
    Spawn {
        children,
        any: false,
        fail_if_taken: false,
    }
}

/// Children that still need their join step.
#[must_use = "name the step that joins the children: `.then(step)`"]
#[derive(Debug)]
pub struct Spawn {
    children: Vec<NewInstance>,
    any: bool,
    fail_if_taken: bool,
}

impl Spawn {
    /// Adds children of another machine to the spawn.
    pub fn and<C: IntoNewInstance>(mut self, more: impl IntoIterator<Item = C>) -> Spawn {
        self.children.extend(
            more.into_iter()
                .map(|child| child.into_new_instance().untyped()),
        );
        self
    }
    /// Joins as soon as any one of the children has settled. The other children continue to run.
    pub fn any(mut self) -> Spawn {
        self.any = true;
        self
    }
    /// Fails the step if another instance already holds the key of a child. By default the engine
    /// does not insert such a child.
    pub fn fail_if_taken(mut self) -> Spawn {
        self.fail_if_taken = true;
        self
    }
    /// Sets the step that joins the children. If the spawn has no children, this step runs at once.
    pub fn then<M: Machine>(self, join: M::Step) -> Waiting<M> {
        let Spawn {
            children,
            any,
            fail_if_taken,
        } = self;
        Waiting(Transition::of(NextAction::Spawn {
            children,
            any,
            fail_if_taken,
            then: join,
            deadline: None,
        }))
    }
}

/// A wait or a join that still needs its time limit:
/// `Ok(wait_for::<Paid>().then(Step::Ship).or_after(DAY, Step::Release))`, or `.forever()`. Only
/// waits and joins have one: `done(..).or_after(..)` does not compile.
#[must_use = "say how long to wait: `.or_after(delay, step)` or `.forever()`"]
#[derive(Debug)]
pub struct Waiting<M: Machine>(Transition<M>);

impl<M: Machine> Waiting<M> {
    /// Ends the wait after this time (a duration, a period on a calendar, or a date) and continues
    /// with `step` instead.
    pub fn or_after(self, due: impl Into<Due>, step: M::Step) -> Transition<M> {
        let Waiting(mut transition) = self;
        if let NextAction::Wait { deadline, .. } | NextAction::Spawn { deadline, .. } =
            &mut transition.action
        {
            *deadline = Some((due.into(), step));
        }
        transition
    }

    /// Enqueues `job` repeatedly while the wait lasts: `.repeat(Cycle::every(DAY).times(2), Remind
    /// { order })`. The commit that ends the wait ends the repetition too; if a signal or the
    /// children end the wait at once, the repetition never starts.
    pub fn repeat(mut self, cycle: Cycle, job: impl IntoNewInstance) -> Waiting<M> {
        self.0
            .repeats
            .push((cycle, job.into_new_instance().untyped()));
        self
    }

    /// Lets the wait or join last without a time limit.
    pub fn forever(self) -> Transition<M> {
        self.0
    }
}
