-- called by: store::pick::priorities     index: instances_pick, one probe per priority in use
-- locks: nothing
-- Returns the priorities of a queue that have an instance due now or within $2 seconds. The
-- recursive query is a loose index scan: it jumps from each priority to the next, whatever the
-- number of instances between the two, and reads the earliest due time of each priority.
with recursive used(queue, priority, due) as (
    select wanted.queue, first.priority, first.eligible_at
    from unnest($1::text[]) as wanted(queue)
    cross join lateral (
        select i.priority, i.eligible_at from gen_durable.instances i
        where i.queue = wanted.queue and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
        order by i.queue, i.priority, i.eligible_at limit 1
    ) first
    union all
    select used.queue, later.priority, later.eligible_at
    from used
    cross join lateral (
        select i.priority, i.eligible_at from gen_durable.instances i
        where i.queue = used.queue and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting and i.priority > used.priority
        order by i.queue, i.priority, i.eligible_at limit 1
    ) later
)
select queue, priority from used where due <= gen_durable.clock() + make_interval(secs => $2)
