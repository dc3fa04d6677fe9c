-- called by: store::timer::list     index: instances_deadlines, timers_due, instances_pick (a loose scan over queues and priorities)
-- locks: nothing
-- Returns a page of timers, deadlines and sleeping instances by due time, after the cursor ($3,
-- $4): a due time, and a number that is twice the id of an instance, or twice the id of a timer
-- plus one. With $2 the page has only overdue rows, with $5 only rows that are not due yet. The
-- page includes timers of schedules that no live worker has registered, and marks these timers.
-- Leaves out instances that wait for their partition, because their due time alone does not make
-- them run.
with recursive used(queue, priority, nth) as (
    (select i.queue, i.priority, 1 from gen_durable.instances i
     where not $2 and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting order by i.queue, i.priority limit 1)
    union all
    select later.queue, later.priority, used.nth + 1 from used
    cross join lateral (
        select i.queue, i.priority from gen_durable.instances i
        where i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting and (i.queue, i.priority) > (used.queue, used.priority)
        order by i.queue, i.priority limit 1
    ) later
    where used.nth < 500
),
place as materialized (
    select greatest($3, case when $5 then gen_durable.clock() else '-infinity' end) as at,
        case when $3 >= case when $5 then gen_durable.clock() else '-infinity' end then $4 else -1 end as number
),
sleeping as (
    select found.* from place cross join used
    cross join lateral (
        select 'sleep' as kind, null::bigint as id, i.eligible_at as due_at, i.id as instance_id, i.machine, null::text as schedule,
            null::text as cycle, i.step, i.id * 2 as number
        from gen_durable.instances i
        where i.queue = used.queue and i.priority = used.priority and i.status = 'runnable' and i.crash_count < 2
          and not i.partition_waiting and i.eligible_at > gen_durable.clock() and i.eligible_at < 'infinity'
          and (i.eligible_at, i.id) > (place.at, place.number >> 1)
        order by i.eligible_at, i.id limit $1
    ) found
),
waiting as (
    select found.* from place
    cross join lateral (
        select 'deadline' as kind, null::bigint as id, i.deadline_at as due_at, i.id as instance_id, i.machine,
            null::text as schedule, null::text as cycle, i.deadline_step as step, i.id * 2 as number
        from gen_durable.instances i
        where i.deadline_at is not null and (i.deadline_at, i.id) > (place.at, place.number >> 1)
        order by i.deadline_at, i.id limit $1
    ) found
),
armed as (
    select found.* from place
    cross join lateral (
        select case when t.schedule is null then 'repeat' else 'schedule' end as kind, t.id, t.due_at, t.instance_id,
            coalesce(t.new_instance->>'machine', '') as machine, t.schedule, t.cycle, null::text as step, t.id * 2 + 1 as number
        from gen_durable.timers t
        where t.state = 'pending' and (t.due_at, t.id) > (place.at, (place.number - 1) >> 1)
        order by t.due_at, t.id limit $1
    ) found
)
select kind, id, due_at, instance_id, machine, schedule, cycle, step, due_at < gen_durable.clock() as overdue,
    schedule is null or exists (select from gen_durable.workers w
        where w.lease_expires_at > statement_timestamp() and schedule = any (w.schedules)) as served,
    gen_durable.clock() as now, number
from (select * from sleeping union all select * from waiting union all select * from armed) due
where not $2 or due_at < gen_durable.clock()
order by due_at, number
limit $1
