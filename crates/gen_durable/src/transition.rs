//! How a step ends, and what rides along with its commit.

use std::{fmt, marker::PhantomData, time::Duration};

use jiff::Timestamp;

use crate::{
    birth::{Birth, IntoBirth},
    calendar::{Cycle, Due},
    error::StepError,
    event::{Event, Fact},
    letter::{LetterTo, letter_to},
    machine::Machine,
    signal::{Address, Signal, Signals},
    store::step_tx::StepTx,
};

/// What a step returns: how it ends, or an error. `?` on any error means "try again".
pub type Outcome<M> = Result<Transition<M>, StepError>;

/// A decided end of a step. It does nothing until the step returns it and the engine has committed it.
#[must_use = "a transition does nothing until the step returns it"]
pub struct Transition<M: Machine> {
    pub(crate) ending: Ending<M>,
    /// Enqueued in the same commit.
    pub(crate) births: Vec<Birth>,
    /// Sent in the same commit.
    pub(crate) letters: Vec<LetterTo>,
    /// Repeated beside the wait, for as long as it lasts.
    pub(crate) repeats: Vec<(Cycle, Birth)>,
    /// Recorded in the same commit.
    pub(crate) events: Vec<Result<Fact, StepError>>,
    /// The step's own transaction, in which the ending is to be written.
    pub(crate) within: Option<StepTx>,
}

pub(crate) enum Ending<M: Machine> {
    Next(M::Step),
    Sleep(Due, M::Step),
    Retry(Duration),
    Wait {
        names: Vec<&'static str>,
        then: M::Step,
        deadline: Deadline<M>,
    },
    Spawn {
        children: Vec<Birth>,
        any: bool,
        fail_if_taken: bool,
        then: M::Step,
        deadline: Deadline<M>,
    },
    Done(M::Output),
    Stop(String),
}

/// When a wait gives up, and where it goes then.
pub(crate) type Deadline<M> = Option<(Due, <M as Machine>::Step)>;

impl<M: Machine> Transition<M> {
    fn of(ending: Ending<M>) -> Self {
        Transition {
            ending,
            births: Vec::new(),
            letters: Vec::new(),
            repeats: Vec::new(),
            events: Vec::new(),
            within: None,
        }
    }

    /// An outbox: enqueue this in the same commit.
    pub fn and_enqueue(mut self, also: impl IntoBirth) -> Self {
        self.births.push(also.into_birth());
        self
    }

    /// An outbox: send this in the same commit. Nobody there is this step's error.
    pub fn and_signal<S: Signal>(self, to: impl Into<Address<S::To>>, signal: S) -> Self {
        self.and_letter(letter_to(to, signal))
    }

    /// The same with options: `done(()).and_letter(letter_to(order, Paid { cents }).once("evt-7"))`. A duplicate is no error.
    pub fn and_letter(mut self, letter: LetterTo) -> Self {
        self.letters.push(letter);
        self
    }

    /// Record this event in the same commit, in the log of the instance's tenant.
    pub fn and_record<E: Event>(mut self, event: E) -> Self {
        self.events.push(Fact::new(String::new(), &event));
        self
    }

    /// The same, in the log of another tenant.
    pub fn and_record_for<E: Event>(mut self, tenant: impl fmt::Display, event: E) -> Self {
        self.events.push(Fact::new(tenant.to_string(), &event));
        self
    }

    /// Commit this transition inside the step's own transaction (from [`Context::begin`](crate::Context::begin), or with the
    /// feature `sqlx` from the host's own pool): what the step wrote through it and what it decided are one commit. For that
    /// database: exactly once.
    ///
    /// If the claim was lost meanwhile, the transaction is rolled back.
    pub fn within(mut self, tx: impl Into<StepTx>) -> Self {
        self.within = Some(tx.into());
        self
    }
}

impl<M: Machine> fmt::Debug for Transition<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.ending {
            Ending::Next(_) => "next",
            Ending::Sleep(..) => "sleep",
            Ending::Retry(_) => "retry_after",
            Ending::Wait { .. } => "wait_for",
            Ending::Spawn { .. } => "spawn",
            Ending::Done(_) => "done",
            Ending::Stop(_) => "stop",
        })
    }
}

/// Go to `step` now.
pub fn next<M: Machine>(step: M::Step) -> Transition<M> {
    Transition::of(Ending::Next(step))
}

/// The same step again, later; `attempt` rises, `failures` does not.
pub fn retry_after<M: Machine>(delay: Duration) -> Transition<M> {
    Transition::of(Ending::Retry(delay))
}

/// Settled, with a result.
pub fn done<M: Machine>(output: M::Output) -> Transition<M> {
    Transition::of(Ending::Done(output))
}

/// Settled, as failed.
pub fn stop<M: Machine>(reason: impl Into<String>) -> Transition<M> {
    Transition::of(Ending::Stop(reason.into()))
}

/// A timer that no process holds: `sleep(3 * DAY).then(Step::Remind)`. A duration counts from the commit; a
/// [`Period`](crate::Period) from the time at which the step began, on the calendar of its zone; a date is what it is, and one in
/// the past is now.
pub fn sleep(due: impl Into<Due>) -> Sleep {
    Sleep(due.into())
}

/// The same until a date: `sleep_until(invoice.due).then(Step::Dun)`. One in the past is now.
pub fn sleep_until(at: Timestamp) -> Sleep {
    Sleep(at.into())
}

/// A sleep that has not yet said where it leads.
#[must_use = "say what comes after: `.then(step)`"]
#[derive(Debug, Clone)]
pub struct Sleep(Due);

impl Sleep {
    /// Go to `step` when the time has passed.
    pub fn then<M: Machine>(self, step: M::Step) -> Transition<M> {
        Transition::of(Ending::Sleep(self.0, step))
    }
}

/// Park until one of these signals is in the inbox: `wait_for::<(Payment, Abandon)>().then(Step::Paid)`.
///
/// A matching letter that is there already means: at once. Letters that this step has already seen do not count, so a step
/// can gather a pack by waiting again.
pub fn wait_for<S>() -> WaitFor<S> {
    WaitFor(PhantomData)
}

/// A wait that has not yet said where a signal leads.
#[must_use = "say where a signal leads: `.then(step)`"]
#[derive(Debug)]
pub struct WaitFor<S>(PhantomData<S>);

impl<S> WaitFor<S> {
    /// Where a signal leads.
    pub fn then<M: Machine>(self, step: M::Step) -> Waiting<M>
    where
        S: Signals<M>,
    {
        Waiting(Transition::of(Ending::Wait {
            names: S::names(),
            then: step,
            deadline: None,
        }))
    }
}

/// Fan out: `spawn(items).then(Step::Join)` runs `Join` when every child has settled, failed ones included.
pub fn spawn<C: IntoBirth>(children: impl IntoIterator<Item = C>) -> Spawn {
    let children = children.into_iter().map(IntoBirth::into_birth).collect();
    Spawn {
        children,
        any: false,
        fail_if_taken: false,
    }
}

/// Children that have not yet said where they join.
#[must_use = "say where they join: `.then(step)`"]
#[derive(Debug)]
pub struct Spawn {
    children: Vec<Birth>,
    any: bool,
    fail_if_taken: bool,
}

impl Spawn {
    /// More children, of another kind.
    pub fn and<C: IntoBirth>(mut self, more: impl IntoIterator<Item = C>) -> Spawn {
        self.children
            .extend(more.into_iter().map(IntoBirth::into_birth));
        self
    }
    /// Join as soon as any one of them has settled; the others run on.
    pub fn any(mut self) -> Spawn {
        self.any = true;
        self
    }
    /// A child whose key is taken is this step's error. Unless this is said, it is left out.
    pub fn fail_if_taken(mut self) -> Spawn {
        self.fail_if_taken = true;
        self
    }
    /// Where they join. Without any child: at once.
    pub fn then<M: Machine>(self, join: M::Step) -> Waiting<M> {
        let Spawn {
            children,
            any,
            fail_if_taken,
        } = self;
        Waiting(Transition::of(Ending::Spawn {
            children,
            any,
            fail_if_taken,
            then: join,
            deadline: None,
        }))
    }
}

/// A wait or a join that can be given a deadline: `Ok(wait_for::<Paid>().then(Step::Ship).or_after(DAY, Step::Release))`, or
/// `.forever()`. Only these have one: `done(…).or_after(…)` does not compile.
#[must_use = "say how long: `.or_after(delay, step)` or `.forever()`"]
#[derive(Debug)]
pub struct Waiting<M: Machine>(Transition<M>);

impl<M: Machine> Waiting<M> {
    /// Give up after this long (or a period on a calendar, or at a date), and go to `step` instead.
    pub fn or_after(self, due: impl Into<Due>, step: M::Step) -> Transition<M> {
        let Waiting(mut transition) = self;
        if let Ending::Wait { deadline, .. } | Ending::Spawn { deadline, .. } =
            &mut transition.ending
        {
            *deadline = Some((due.into(), step));
        }
        transition
    }

    /// Enqueue `job` again and again beside the wait, for as long as it lasts: `.meanwhile(Cycle::every(DAY).times(2),
    /// Remind { order })`. What ends the wait ends this, in the same commit; a wait that is satisfied at once never begins it.
    pub fn meanwhile(mut self, cycle: Cycle, job: impl IntoBirth) -> Waiting<M> {
        self.0.repeats.push((cycle, job.into_birth()));
        self
    }

    /// However long it takes.
    pub fn forever(self) -> Transition<M> {
        self.0
    }
}
