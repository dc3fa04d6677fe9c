-- called by: store::timer::forecast     index: instances_deadlines, timers_due, instances_pick (a loose scan over queues and priorities)
-- locks: nothing
-- Counts the timers, deadlines and sleeping instances that become due in each of $2 equal parts of
-- the next $1 seconds, by kind. Each count has the upper bound $3 (repeating timers and schedules
-- share one bound), so that the cost is bounded.
with recursive used(queue, priority, place) as (
    (select i.queue, i.priority, 1 from gen_durable.instances i
     where i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting order by i.queue, i.priority limit 1)
    union all
    select later.queue, later.priority, used.place + 1 from used
    cross join lateral (
        select i.queue, i.priority from gen_durable.instances i
        where i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting and (i.queue, i.priority) > (used.queue, used.priority)
        order by i.queue, i.priority limit 1
    ) later
    where used.place < 500
),
part as materialized (
    select n, gen_durable.clock() + make_interval(secs => $1 * n / $2) + case n when 0 then interval '1 us' else '0' end as since,
        gen_durable.clock() + make_interval(secs => $1 * (n + 1) / $2) + case n when $2 - 1 then interval '1 us' else '0' end as until
    from generate_series(0, $2 - 1) n
)
select part.n as part, counted.kind, counted.count
from part
cross join lateral (
    select 'sleep' as kind, count(*) from (
        select from used
        cross join lateral (
            select from gen_durable.instances i
            where i.queue = used.queue and i.priority = used.priority and i.status = 'runnable' and i.crash_count < 2
              and not i.partition_waiting and i.eligible_at >= part.since and i.eligible_at < part.until
            order by i.eligible_at limit $3
        ) found
        limit $3) sleeping
    union all
    select 'deadline', count(*) from (
        select from gen_durable.instances i
        where i.deadline_at >= part.since and i.deadline_at < part.until
        order by i.deadline_at limit $3) waiting
    union all
    select case when armed.schedule is null then 'repeat' else 'schedule' end, count(*) from (
        select t.schedule from gen_durable.timers t
        where t.state = 'pending' and t.due_at >= part.since and t.due_at < part.until
        order by t.due_at limit $3) armed
    group by 1
) counted
where counted.count > 0
order by 1, 2
