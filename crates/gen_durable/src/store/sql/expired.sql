-- called by: store::lease::expired     index: none (one row per process)
-- locks: nothing
-- Returns the expired workers that have had the chance to renew their lease: an outage of the
-- database ends the lease of every worker. Returns none until Postgres has been up for the duration
-- of one lease. After that, one of two conditions must hold. First: the asking worker's own lease
-- has been valid without a gap for the duration of one lease. Then the asking worker has been in
-- contact with the database since before the other lease ended, or for as long after an outage.
-- Second, if the asking worker is younger: all workers together have been in contact for the
-- duration of one lease since the expired worker's lease ended. So workers still reap if every
-- worker crashes before it is one lease old: the row of a crashed worker stays until another worker
-- reaps its claims, and records when the crashed worker was in contact. A contact counts for a
-- sixth of a lease beyond the last renewal. The second condition ignores workers with a longer
-- lease than the asking worker, because an outage may be shorter than such a lease.
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
