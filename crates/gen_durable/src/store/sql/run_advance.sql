-- called by: store::runs::advance     index: projection_runs_pkey, projection_failures_pkey
-- locks: the run's row, then the rows of the failures
-- Advances a run to the end of a batch, if the run is still at the position where the batch began.
-- Marks the parked events that a replay has applied ($7) as resolved.
with advanced as (
    update gen_durable.projection_runs r
    set position = $3, applied = $4, owner = $5::text::uuid, owned_until = statement_timestamp() + make_interval(secs => $6),
        updated_at = gen_durable.clock(), attempts = 0, error = null
    where r.id = $1 and r.position = $2 and r.status = 'running'
    returning r.tenant, r.projection, r.kind
),
resolved as (
    update gen_durable.projection_failures f
    set state = 'resolved', resolved_at = gen_durable.clock(), redrive = false
    from advanced
    where $7 and advanced.kind = 'replay' and f.tenant = advanced.tenant and f.projection = advanced.projection
      and f.position > $2 and f.position <= $3 and f.resolved_at is null and f.state = 'parked'
)
select true from advanced
