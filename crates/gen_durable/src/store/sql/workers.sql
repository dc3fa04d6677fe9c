-- called by: store::inspect::workers     index: none (one row per process)
-- locks: nothing
select id::text, host, pid, queues, machines, steps, schedules, projections, started_at, renewed_at, found_work_at,
    lease_expires_at, lease_expires_at > statement_timestamp() as alive, polls, draining, version, connections_max
from gen_durable.workers
order by started_at, id
limit 1000
