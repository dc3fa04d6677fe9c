-- called by: store::lease::expired     index: none (a row a process)
-- locks: nothing
-- Workers whose lease ran out, once they have had the chance to renew it: an outage ends the lease of every worker. None for one
-- lease after a start of Postgres itself. Then either the asker's own lease has been good for one lease (it has been in contact
-- since before the lease of the expired worker ran out, or for as long after an outage); or, if the asker is younger, all workers together
-- have been in contact for one lease since the expired worker's lease ran out. So a fleet in which every process dies before it is one lease
-- old reaps all the same: rows of crashed workers stay until they are reaped, and say when each was in contact. A contact
-- counts for a sixth of a lease more. A worker with a longer lease than the asker's says nothing: an outage may hide in it.
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
