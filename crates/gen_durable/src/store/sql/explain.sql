-- called by: store::explain::facts     index: instances_pkey, queues_pkey, workers_pkey, instances_pick
-- locks: nothing
-- Evaluates the conditions of the picker for the given instances: does a worker serve the queue, is
-- the queue not paused, is the instance due, can a worker of that queue run the instance's step,
-- and, with $2, how many instances the picker claims before the instance (counted up to 10,001).
select i.id, gen_durable.clock() as now, q.paused_at, q.paused_by,
    (select count(*) from gen_durable.workers w
     where w.lease_expires_at > statement_timestamp() and i.queue = any (w.queues)) as workers_of_queue,
    (select count(*) from gen_durable.workers w
     where w.lease_expires_at > statement_timestamp() and i.queue = any (w.queues)
       and gen_durable._knows_step(w.steps, i.machine, i.machine_version, i.step)) as workers_able,
    (select count(*) from gen_durable.workers w where w.lease_expires_at > statement_timestamp()) as workers_alive,
    h.host, h.pid, h.lease_expires_at > statement_timestamp() as alive,
    case when $2 then (select count(*) from (
        select from gen_durable.instances a
        where a.queue = i.queue and a.status = 'runnable' and a.crash_count < 2 and not a.partition_waiting
          and (a.priority, a.eligible_at, a.id) < (i.priority, i.eligible_at, i.id)
          and a.eligible_at <= gen_durable.clock()
        limit 10001) before) else 0 end as due_before,
    exists (select from gen_durable.workers w
     where w.lease_expires_at > statement_timestamp() and i.queue = any (w.queues)
       and i.machine || '/' || i.machine_version = any (w.machines)) as machine_served
from gen_durable.instances i
left join gen_durable.queues q on q.name = i.queue and q.paused_at is not null
left join gen_durable.workers h on h.id = i.locked_by
where i.id = any ($1::bigint[])
