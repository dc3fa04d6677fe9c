-- called by: store::explain::facts     index: instances_pkey, queues_pkey, workers_pkey, instances_pick
-- locks: nothing
-- The picker's own conditions, asked about one row: is its queue worked and open, is it due, can a worker of that queue run
-- it, and how many go before it (counted up to 10,001).
select gen_durable.clock(), q.paused_at, q.paused_by,
    (select count(*) from gen_durable.workers w
     where w.lease_expires_at > statement_timestamp() and i.queue = any (w.queues)),
    (select count(*) from gen_durable.workers w
     where w.lease_expires_at > statement_timestamp() and i.queue = any (w.queues)
       and i.fsm || '/' || i.fsm_version = any (w.machines)),
    h.host, h.pid, h.lease_expires_at > statement_timestamp(),
    (select count(*) from (
        select from gen_durable.instances a
        where a.queue = i.queue and a.status = 'runnable' and a.crash_count < 2 and not a.held_back
          and (a.priority, a.eligible_at, a.id) < (i.priority, i.eligible_at, i.id)
          and a.eligible_at <= gen_durable.clock()
        limit 10001) before)
from gen_durable.instances i
left join gen_durable.queues q on q.name = i.queue and q.paused_at is not null
left join gen_durable.workers h on h.id = i.locked_by
where i.id = $1
