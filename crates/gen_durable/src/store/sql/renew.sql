-- called by: store::lease::renew     index: workers_pkey
-- locks: this worker's row
-- Renews the lease of this worker, even if the lease has expired: a worker that is back in contact
-- keeps the claims that no other worker has reaped. If the lease has expired, the statement sets
-- started_at to now, because started_at records since when the lease has been valid without a gap.
insert into gen_durable.workers as w (id, lease_expires_at, host, pid, queues, machines, steps, schedules, projections, polls,
    version, connections_max, draining)
values ($1::text::uuid, statement_timestamp() + make_interval(secs => $2), $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
on conflict (id) do update
set started_at = case when w.lease_expires_at < statement_timestamp() then statement_timestamp() else w.started_at end,
    lease_expires_at = excluded.lease_expires_at, renewed_at = statement_timestamp(),
    queues = excluded.queues, machines = excluded.machines, steps = excluded.steps, schedules = excluded.schedules,
    projections = excluded.projections, polls = excluded.polls, version = excluded.version,
    connections_max = excluded.connections_max, draining = excluded.draining
