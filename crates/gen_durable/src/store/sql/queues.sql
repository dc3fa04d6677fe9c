-- called by: store::inspect::Inspect::queues     index: instances_pick (a loose scan over the queues), instances_held
-- locks: nothing
with recursive used(queue) as (
    (select queue from gen_durable.instances where status = 'runnable' and crash_count < 2 and not held_back order by queue limit 1)
    union all
    select later.queue from used
    cross join lateral (
        select i.queue from gen_durable.instances i
        where i.status = 'runnable' and i.crash_count < 2 and not i.held_back and i.queue > used.queue
        order by i.queue limit 1
    ) later
),
executing as (
    select queue, count(*) as count from gen_durable.instances where status = 'executing' group by queue
),
named as (
    select queue as name from used union select name from gen_durable.queues union select queue from executing
)
select named.name,
    exists (select from gen_durable.queues q where q.name = named.name and q.paused_at is not null),
    (select count(*) from (
        select from gen_durable.instances i
        where i.queue = named.name and i.status = 'runnable' and i.crash_count < 2 and not i.held_back and i.eligible_at <= gen_durable.clock()
        limit 10001) due),
    coalesce((select executing.count from executing where executing.queue = named.name), 0)
from named
order by named.name
