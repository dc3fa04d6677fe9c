-- called by: store::timer::forecast     index: instances_deadlines, timers_due, instances_pick (a loose scan over queues and priorities)
-- locks: nothing
-- How many fall due in each of $2 parts of the next $1 seconds, by kind.
with recursive used(queue, priority) as (
    (select queue, priority from gen_durable.instances where status = 'runnable' and crash_count < 2 order by queue, priority limit 1)
    union all
    select later.queue, later.priority from used
    cross join lateral (
        select i.queue, i.priority from gen_durable.instances i
        where i.status = 'runnable' and i.crash_count < 2 and (i.queue, i.priority) > (used.queue, used.priority)
        order by i.queue, i.priority limit 1
    ) later
),
due as (
    select 'sleep' as kind, found.due_at from used
    cross join lateral (
        select i.eligible_at as due_at from gen_durable.instances i
        where i.queue = used.queue and i.priority = used.priority and i.status = 'runnable' and i.crash_count < 2
          and i.eligible_at > gen_durable.clock() and i.eligible_at <= gen_durable.clock() + make_interval(secs => $1)
    ) found
    union all
    select 'deadline', i.deadline_at from gen_durable.instances i
    where i.deadline_at > gen_durable.clock() and i.deadline_at <= gen_durable.clock() + make_interval(secs => $1)
    union all
    select case when t.schedule is null then 'repeat' else 'schedule' end, t.due_at from gen_durable.timers t
    where t.state = 'pending' and t.due_at > gen_durable.clock() and t.due_at <= gen_durable.clock() + make_interval(secs => $1)
)
select least(floor(extract(epoch from due_at - gen_durable.clock()) / $1 * $2)::int, $2 - 1), kind, count(*)
from due
group by 1, 2
order by 1, 2
