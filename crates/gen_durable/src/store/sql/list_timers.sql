-- called by: store::timer::list     index: instances_deadlines, timers_due, instances_pick (a loose scan over queues and priorities)
-- locks: nothing
-- Everything that falls due, the next first. A schedule that no live worker registers is here as well, and says so.
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
sleeping as (
    select found.* from used
    cross join lateral (
        select 'sleep' as kind, null::bigint as id, i.eligible_at as due_at, i.id as instance_id, i.fsm, null::text as schedule,
            null::text as cycle, i.step
        from gen_durable.instances i
        where i.queue = used.queue and i.priority = used.priority and i.status = 'runnable' and i.crash_count < 2
          and i.eligible_at > gen_durable.clock() and i.eligible_at < 'infinity'
        order by i.eligible_at limit $1
    ) found
),
waiting as (
    select 'deadline' as kind, null::bigint as id, i.deadline_at as due_at, i.id as instance_id, i.fsm, null::text as schedule,
        null::text as cycle, i.deadline_step as step
    from gen_durable.instances i
    where i.deadline_at is not null
    order by i.deadline_at limit $1
),
armed as (
    select case when t.schedule is null then 'repeat' else 'schedule' end as kind, t.id, t.due_at, t.instance_id,
        coalesce(t.birth->>'fsm', '') as fsm, t.schedule, t.cycle, null::text as step
    from gen_durable.timers t
    where t.state = 'pending'
    order by t.due_at limit $1
)
select kind, id, due_at, instance_id, fsm, schedule, cycle, step, due_at < gen_durable.clock(),
    schedule is null or exists (select from gen_durable.workers w
        where w.lease_expires_at > statement_timestamp() and schedule = any (w.schedules)),
    gen_durable.clock()
from (select * from sleeping union all select * from waiting union all select * from armed) due
where not $2 or due_at < gen_durable.clock()
order by due_at, instance_id
limit $1
