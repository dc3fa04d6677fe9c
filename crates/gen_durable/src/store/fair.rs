//! Statements about fair queues: their tenants share the workers.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::{
    connection::Connection,
    fault::Fault,
    pick::Mark,
    row::{named, only},
    sql,
};

sql!(DECLARE_FAIR, "declare_fair.sql", [TEXT_ARRAY]);
sql!(FAIR_QUEUES, "fair_queues.sql", [TEXT_ARRAY]);
sql!(
    FAIR_PAGE,
    "fair_page.sql",
    [
        TEXT,
        TEXT_ARRAY,
        INT2_ARRAY,
        TIMESTAMPTZ_ARRAY,
        INT8_ARRAY,
        TEXT_ARRAY
    ]
);
sql!(DUE_TENANTS, "due_tenants.sql", [TEXT, INT2, TEXT]);
sql!(SET_FAIR, "set_fair.sql", [TEXT, BOOL]);
sql!(SET_TENANT_SHARE, "set_tenant_share.sql", [TEXT, TEXT, INT4]);

/// How many tenants `_due_tenants` returns at most.
pub(crate) const DUE_TENANTS_MAX: usize = 1_000;

/// A priority of a fair queue and a tenant.
pub(crate) type TenantKey = (i16, String);

/// What the row of a queue says about its tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FairSettings {
    pub(crate) queue: String,
    pub(crate) is_fair: bool,
    /// The shares of tenants other than 1.
    pub(crate) shares: HashMap<String, u32>,
    pub(crate) version: i64,
}

/// What a pick asks for one tenant of a fair queue: up to `room` instances after `from`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TenantRange {
    pub(crate) tenant: TenantKey,
    pub(crate) from: Mark,
    pub(crate) room: i32,
}

/// The newest due instances of a fair queue, as tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FairPage {
    /// The ends of the pages of the newest instances, by priority: there may be more after them.
    pub(crate) reached: BTreeMap<i16, Mark>,
    /// Whether all instances of the pages were in the index of fair instances.
    pub(crate) is_indexed: bool,
    /// The tenants, each with the position before its first instance of the page.
    pub(crate) found: Vec<(TenantKey, Mark)>,
}

/// What a pick found in a fair queue that has more due instances than the worker has room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FairReport {
    pub(crate) queue: String,
    pub(crate) page: FairPage,
    /// The tenants that the pick has asked for.
    pub(crate) tenants: Vec<AskedTenant>,
}

/// A tenant of a fair queue, and the first of its due instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DueTenant {
    pub(crate) tenant: TenantKey,
    /// The position before the first due instance. `None` if the tenant has none.
    pub(crate) from: Option<Mark>,
}

/// A tenant of a fair queue that a pick has asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AskedTenant {
    pub(crate) tenant: TenantKey,
    /// Where the pick began to read the instances of the tenant.
    pub(crate) from: Mark,
    /// The last candidate of the pick.
    pub(crate) last: Option<Mark>,
    /// The pick found fewer instances than it had room for.
    pub(crate) is_exhausted: bool,
}

/// Makes queues fair, unless an operator has changed that.
pub(crate) async fn declare(connection: &Connection, queues: &[String]) -> Result<(), Fault> {
    if queues.is_empty() {
        return Ok(());
    }
    connection.query(&DECLARE_FAIR, &[&queues]).await.map(drop)
}

/// Returns the settings of those of these queues that have a row.
pub(crate) async fn queues(
    connection: &Connection,
    queues: &[String],
) -> Result<Vec<FairSettings>, Fault> {
    let rows = connection.query(&FAIR_QUEUES, &[&queues]).await?;
    rows.iter()
        .map(|row| {
            let shares: &str = named(row, "shares")?;
            Ok(FairSettings {
                queue: named(row, "name")?,
                is_fair: named(row, "fair")?,
                shares: serde_json::from_str(shares).unwrap_or_default(),
                version: named(row, "version")?,
            })
        })
        .collect()
}

/// Reads the newest due instances of a fair queue, after these positions. Returns the time of the
/// database with them.
pub(crate) async fn page(
    connection: &Connection,
    queue: &str,
    ranges: &[(i16, Mark)],
    steps: &[String],
) -> Result<(FairPage, jiff::Timestamp), Fault> {
    let queues: Vec<&str> = ranges.iter().map(|_| queue).collect();
    let priorities: Vec<i16> = ranges.iter().map(|(priority, _)| *priority).collect();
    let from: Vec<jiff::Timestamp> = ranges.iter().map(|(_, mark)| mark.at).collect();
    let from_id: Vec<i64> = ranges.iter().map(|(_, mark)| mark.id).collect();
    let rows = connection
        .query(
            &FAIR_PAGE,
            &[&queue, &queues, &priorities, &from, &from_id, &steps],
        )
        .await?;
    let row = rows
        .first()
        .ok_or_else(|| Fault::unexpected("a page of a fair queue must be one row"))?;
    let page = DecodedPage {
        reached: decode_json(named(row, "reached")?)?,
        found: decode_json(named(row, "tenants")?)?,
        is_indexed: named(row, "is_indexed")?,
    };
    Ok((page.into(), named(row, "now")?))
}

/// Returns a page of the tenants that have due instances in a fair queue.
pub(crate) async fn due_tenants(
    connection: &Connection,
    queue: &str,
    after: Option<&TenantKey>,
) -> Result<Vec<DueTenant>, Fault> {
    let (priority, tenant) = after.map_or((i16::MIN, None), |(priority, tenant)| {
        (*priority, Some(tenant.as_str()))
    });
    let rows = connection
        .query(&DUE_TENANTS, &[&queue, &priority, &tenant])
        .await?;
    rows.iter()
        .map(|row| {
            let at: Option<jiff::Timestamp> = named(row, "eligible_at")?;
            let id: i64 = named(row, "id")?;
            Ok(DueTenant {
                tenant: (named(row, "priority")?, named(row, "tenant")?),
                from: at.map(|at| Mark { at, id: id - 1 }),
            })
        })
        .collect()
}

/// Makes a queue fair, or ends that. Returns whether this changed anything.
pub(crate) async fn set_fair(
    connection: &Connection,
    queue: &str,
    fair: bool,
) -> Result<bool, Fault> {
    let rows = connection.act_alone(&SET_FAIR, &[&queue, &fair]).await?;
    rows.first().map_or(Ok(false), only)
}

/// Sets the share of a tenant, or removes it. Returns whether this changed anything.
pub(crate) async fn set_share(
    connection: &Connection,
    queue: &str,
    tenant: &str,
    share: Option<i32>,
) -> Result<bool, Fault> {
    let rows = connection
        .act_alone(&SET_TENANT_SHARE, &[&queue, &tenant, &share])
        .await?;
    rows.first().map_or(Ok(false), only)
}

/// Encodes the ranges of the tenants of each fair queue for `_pick`.
pub(super) fn encode(fair: &BTreeMap<String, Vec<TenantRange>>) -> Option<String> {
    if fair.is_empty() {
        return None;
    }
    let queues: serde_json::Map<String, serde_json::Value> = fair
        .iter()
        .map(|(queue, tenants)| {
            let tenants = tenants
                .iter()
                .map(|range| {
                    let (priority, tenant) = &range.tenant;
                    serde_json::json!([
                        priority,
                        tenant,
                        range.from.at.to_string(),
                        range.from.id,
                        range.room
                    ])
                })
                .collect();
            (queue.clone(), serde_json::Value::Array(tenants))
        })
        .collect();
    Some(serde_json::Value::Object(queues).to_string())
}

/// A page as the database encodes it.
#[derive(Deserialize)]
struct DecodedPage {
    reached: Vec<(i16, jiff::Timestamp, i64)>,
    is_indexed: bool,
    found: Vec<(i16, String, jiff::Timestamp, i64)>,
}

impl From<DecodedPage> for FairPage {
    fn from(page: DecodedPage) -> FairPage {
        let reached = page.reached.into_iter();
        let found = page.found.into_iter();
        FairPage {
            reached: reached
                .map(|(priority, at, id)| (priority, Mark { at, id }))
                .collect(),
            is_indexed: page.is_indexed,
            found: found
                .map(|(priority, tenant, at, id)| ((priority, tenant), Mark { at, id }))
                .collect(),
        }
    }
}

fn decode_json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| {
        Fault::unexpected(format!("a report of a fair queue cannot be read: {error}"))
    })
}

/// Reads the reports of `_fair_candidates`.
pub(super) fn decode(reports: &str) -> Result<Vec<FairReport>, Fault> {
    type Asked = (
        i16,
        String,
        jiff::Timestamp,
        i64,
        Option<jiff::Timestamp>,
        Option<i64>,
        bool,
    );
    #[derive(Deserialize)]
    struct Report {
        queue: String,
        #[serde(flatten)]
        page: DecodedPage,
        tenants: Vec<Asked>,
    }
    let asked = |(priority, tenant, at, id, last_at, last_id, is_exhausted): Asked| AskedTenant {
        tenant: (priority, tenant),
        from: Mark { at, id },
        last: last_at.zip(last_id).map(|(at, id)| Mark { at, id }),
        is_exhausted,
    };
    let read = |report: Report| FairReport {
        queue: report.queue,
        page: report.page.into(),
        tenants: report.tenants.into_iter().map(asked).collect(),
    };
    let reports: Vec<Report> = decode_json(reports)?;
    Ok(reports.into_iter().map(read).collect())
}
