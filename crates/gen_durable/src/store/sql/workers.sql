-- called by: store::inspect::workers     index: none (one row per process)
-- locks: nothing
select id::text, host, pid, queues, machines, steps, started_at, lease_expires_at, lease_expires_at > statement_timestamp() as alive
from gen_durable.workers
order by started_at, id
limit 1000
