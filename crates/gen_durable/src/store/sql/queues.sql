-- called by: store::inspect::queues     index: instances_pick (a loose scan over the queues), instances_suspects, instances_held, instances_lane, instances_partition_waiting, instances_arrival_no, limit_backlog_pkey
-- locks: nothing
-- Returns the queues with the numbers of their instances. The statement reads suspects from their
-- own index, so that the list includes a queue that has only suspects. It counts instances that
-- wait in lanes or for partitions up to a bound, over all queues together. The ORDER BY clauses
-- make the planner use the indexes: without them, if half of the instances wait, the planner
-- expects a sequential scan to reach its LIMIT soon, and that scan reads the half that does not
-- wait too.
with recursive used(queue) as (
    (select queue from gen_durable.instances where status = 'runnable' and crash_count < 2 and not partition_waiting order by queue limit 1)
    union all
    select later.queue from used
    cross join lateral (
        select i.queue from gen_durable.instances i
        where i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting and i.queue > used.queue
        order by i.queue limit 1
    ) later
),
suspects as (
    select queue, count(*) filter (where eligible_at <= gen_durable.clock()) as due from gen_durable.instances
    where status = 'runnable' and crash_count >= 2 and not partition_waiting group by queue
),
executing as (
    select queue, count(*) as count from gen_durable.instances where status = 'executing' group by queue
),
waiting as materialized (
    select w.queue, count(*) filter (where w.status = 'queued') as queued, count(*) filter (where w.partition_waiting) as partition_waiting
    from (
        (select i.queue, i.status, i.partition_waiting from gen_durable.instances i
         where i.in_lane and i.status = 'queued' order by i.lane_hash, i.lane_position limit 10001)
        union all
        (select i.queue, i.status, i.partition_waiting from gen_durable.instances i where i.partition_waiting
         order by i.tenant, i.partition_key, i.priority, i.eligible_at, i.id limit 10001)
        union all
        -- Reads the queued instances that have no lane position yet and wait for placement.
        (select a.queue, a.status, a.partition_waiting
         from (select i.queue, i.status, i.partition_waiting, i.in_lane from gen_durable.instances i
               where i.arrival_no is not null order by i.arrival_no limit 10001) a
         where a.status = 'queued' and not a.in_lane)
    ) w
    group by w.queue
),
named as (
    select queue as name from used union select name from gen_durable.queues union select queue from executing
    union select queue from suspects
    union select queue from waiting
    union select queue from gen_durable.limit_backlog
)
select named.name,
    (select q.paused_at from gen_durable.queues q where q.name = named.name) as paused_at,
    (select q.paused_by from gen_durable.queues q where q.name = named.name and q.paused_at is not null) as paused_by,
    (select count(*) from (
        select from gen_durable.instances i
        where i.queue = named.name and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting and i.eligible_at <= gen_durable.clock()
        limit 10001) due) + coalesce((select suspects.due from suspects where suspects.queue = named.name), 0) as due,
    (select q.retention from gen_durable.queues q where q.name = named.name) as retention,
    (select q.failed_retention from gen_durable.queues q where q.name = named.name) as failed_retention,
    coalesce((select q.fair from gen_durable.queues q where q.name = named.name), false) as is_fair,
    coalesce((select q.tenant_shares::text from gen_durable.queues q where q.name = named.name), '{}') as tenant_shares,
    coalesce((select executing.count from executing where executing.queue = named.name), 0) as executing,
    coalesce((select waiting.queued from waiting where waiting.queue = named.name), 0) as queued,
    coalesce((select waiting.partition_waiting from waiting where waiting.queue = named.name), 0) as partition_waiting
from named
order by named.name
