//! The children of the last spawn, as a step reads them.

use std::{borrow::Cow, fmt};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    context::Context,
    error::{Error, ErrorKind},
    failure::{Failure, FailureKind},
    id::{Id, Status},
    machine::Machine,
    store::family,
};

impl<M: Machine> Context<'_, M> {
    /// Returns all children of the last spawn that are instances of `C`, in spawn order. After
    /// `any` or a deadline some of them may still run.
    ///
    /// # Errors
    ///
    /// Fails if the spawn has more than 1,000 children, or if they hold more than 8 MiB of state
    /// and results: then read them with [`children_page`](Context::children_page). Fails if a child
    /// cannot be decoded.
    pub fn children<C: Machine>(&self) -> Result<Vec<Child<C>>, Error> {
        let Some(text) = &self.row.children else {
            return Ok(Vec::new());
        };
        let page = ChildList::parse(text)?;
        if page.more {
            return Err(Error::invalid(
                "the last spawn has too many children to read at once (the limit is 1,000 children or 8 MiB): read them page by page with cx.children_page()",
            ));
        }
        page.children
            .into_iter()
            .filter(|row| row.is_a::<C>())
            .map(ChildRow::into_child)
            .collect()
    }

    /// Reads one page of the children of the last spawn that are instances of `C`, in spawn order.
    /// The first page begins at the first child; a further page begins after the child that the
    /// previous page returned as [`next`](ChildrenPage::next). A page ends after 1,000 children or
    /// 8 MiB.
    ///
    /// ```
    /// # use gen_durable::{Context, Job, StepError};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Import;
    /// # impl Job for Import {
    /// #   const NAME: &'static str = "import"; type App = (); type Output = u64;
    /// #   async fn run(&self, _: &mut Context<'_, Self>) -> Result<u64, StepError> { Ok(0) }
    /// # }
    /// # async fn sum<M: gen_durable::Machine>(cx: &Context<'_, M>) -> Result<u64, StepError> {
    /// let (mut sum, mut after) = (0, None);
    /// loop {
    ///     let page = cx.children_page::<Import>(after).await?;
    ///     let results = page.children.iter().filter_map(|child| child.result.as_ref());
    ///     sum += results.flatten().sum::<u64>();
    ///     after = page.next;
    ///     if after.is_none() {
    ///         break;
    ///     }
    /// }
    /// # Ok(sum) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached, or if a child cannot be decoded.
    pub async fn children_page<C: Machine>(
        &self,
        after: Option<Id<C>>,
    ) -> Result<ChildrenPage<C>, Error> {
        let (parent, after) = (self.row.id, after.map_or(0, Id::raw));
        let machines: Vec<&'static str> = std::iter::once(C::NAME)
            .chain(C::FORMER_NAMES.iter().copied())
            .collect();
        let text = self
            .pool
            .connections
            .call(move |connection| async move {
                family::page(&connection, parent, after, &machines).await
            })
            .await?
            .map_err(|fault| fault.into_error("read children"))?;
        let Some(text) = text else {
            return Ok(ChildrenPage {
                children: Vec::new(),
                next: None,
            });
        };
        let page = ChildList::parse(&text)?;
        let children = page
            .children
            .into_iter()
            .map(ChildRow::into_child)
            .collect::<Result<Vec<Child<C>>, Error>>()?;
        let next = children.last().map(|child| child.id).filter(|_| page.more);
        Ok(ChildrenPage { children, next })
    }

    /// Counts the children of the last spawn, of all machines, by status. The query reads every
    /// child.
    ///
    /// # Errors
    ///
    /// Fails if the database cannot be reached.
    pub async fn children_counts(&self) -> Result<ChildrenCounts, Error> {
        let parent = self.row.id;
        let by_status = self
            .pool
            .connections
            .call(move |connection| async move { family::counts(&connection, parent).await })
            .await?
            .map_err(|fault| fault.into_error("count children"))?;
        Ok(ChildrenCounts {
            total: by_status.iter().map(|(_, count)| count).sum(),
            by_status,
        })
    }
}

/// A child of the last spawn.
#[non_exhaustive]
pub struct Child<C: Machine> {
    /// The id of the child.
    pub id: Id<C>,
    /// The status of the child.
    pub status: Status,
    /// The stored state of the child.
    pub state: C,
    /// The result of the child; `None` if it has not settled.
    pub result: Option<Result<C::Output, Failure>>,
}

impl<C: Machine> fmt::Debug for Child<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child")
            .field("id", &self.id)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// One page of the children of a spawn, returned by [`Context::children_page`].
#[non_exhaustive]
pub struct ChildrenPage<C: Machine> {
    /// The children, in spawn order.
    pub children: Vec<Child<C>>,
    /// The argument for the next page; `None` if this is the last page.
    pub next: Option<Id<C>>,
}

impl<C: Machine> fmt::Debug for ChildrenPage<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildrenPage")
            .field("children", &self.children)
            .field("next", &self.next)
            .finish()
    }
}

/// The number of children of a spawn, returned by [`Context::children_counts`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChildrenCounts {
    /// The number of all children.
    pub total: u64,
    /// The number of children per status, for each status that occurs.
    pub by_status: Vec<(Status, u64)>,
}

impl ChildrenCounts {
    /// Returns the number of children with this status.
    pub fn of(&self, status: Status) -> u64 {
        self.by_status
            .iter()
            .find(|(of, _)| *of == status)
            .map_or(0, |(_, count)| *count)
    }
}

/// The JSON that `gen_durable._children_of` returns.
#[derive(Deserialize)]
struct ChildList<'a> {
    /// Whether the spawn has further children.
    more: bool,
    #[serde(borrow)]
    children: Vec<ChildRow<'a>>,
}

impl<'a> ChildList<'a> {
    fn parse(text: &'a str) -> Result<ChildList<'a>, Error> {
        serde_json::from_str(text)
            .map_err(|e| Error::because(ErrorKind::Internal, "the children cannot be read", e))
    }
}

#[derive(Deserialize)]
struct ChildRow<'a> {
    id: i64,
    #[serde(borrow)]
    machine: Cow<'a, str>,
    status: Cow<'a, str>,
    #[serde(borrow)]
    state: &'a RawValue,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<String>,
    attempt: u32,
    failures: u32,
}

impl ChildRow<'_> {
    fn is_a<C: Machine>(&self) -> bool {
        self.machine == C::NAME || C::FORMER_NAMES.contains(&self.machine.as_ref())
    }

    fn into_child<C: Machine>(self) -> Result<Child<C>, Error> {
        let shape = |e| {
            Error::because(
                ErrorKind::Invalid,
                format!("child {} cannot be decoded as a {}", self.id, C::NAME),
                e,
            )
        };
        let status: Status = self
            .status
            .parse()
            .map_err(|_| Error::broken("a child has an unknown status"))?;
        let result = match status {
            Status::Done => {
                let text = self.result.map_or("null", RawValue::get);
                Some(Ok(serde_json::from_str(text).map_err(shape)?))
            }
            status if status.is_settled() => {
                let message = self.error.unwrap_or_else(|| status.name().to_owned());
                let counts = (self.attempt, self.failures);
                Some(Err(Failure::new(
                    FailureKind::Settled,
                    counts,
                    message,
                    true,
                )))
            }
            _ => None,
        };
        Ok(Child {
            id: Id::from_raw(self.id),
            status,
            state: serde_json::from_str(self.state.get()).map_err(shape)?,
            result,
        })
    }
}
