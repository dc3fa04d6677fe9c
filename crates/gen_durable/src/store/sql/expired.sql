-- called by: store::lease::expired     index: none (one row per process)
-- locks: nothing
-- Returns workers with an expired lease, once they have had the chance to renew it: an outage ends
-- the lease of every worker. Returns none until Postgres itself has run for one lease. After that,
-- one of two conditions must hold. Either the asking worker's own lease has been valid without a
-- gap for one lease: it has then been in contact since before the other lease ended, or for as long
-- after an outage. Or, if the asking worker is younger, all workers together have been in contact
-- for one lease since the expired worker's lease ended. So a fleet in which every process crashes
-- before it is one lease old still reaps: the rows of crashed workers stay until they are reaped,
-- and record when each was in contact. A contact counts for a sixth of a lease beyond its last
-- renewal. Workers with a longer lease than the asking worker are ignored, because an outage may be
-- hidden in it.
with me as materialized (
    select w.started_at from gen_durable.workers w
    where w.id = $2::text::uuid and w.lease_expires_at >= statement_timestamp()
),
contact as materialized (
    select range_agg(tstzrange(least(w.started_at, w.renewed_at), w.renewed_at + make_interval(secs => $1 / 6))) as periods
    from gen_durable.workers w
    where w.lease_expires_at - w.renewed_at <= make_interval(secs => $1)
)
select expired.id::text
from gen_durable.workers expired cross join me cross join contact
where expired.lease_expires_at < statement_timestamp()
  and pg_postmaster_start_time() < statement_timestamp() - make_interval(secs => $1)
  and (me.started_at < statement_timestamp() - make_interval(secs => $1)
       or make_interval(secs => $1) <= (
           select sum(upper(period) - lower(period))
           from unnest(contact.periods * tstzmultirange(tstzrange(expired.lease_expires_at, statement_timestamp()))) as period))
order by expired.lease_expires_at
limit 100
