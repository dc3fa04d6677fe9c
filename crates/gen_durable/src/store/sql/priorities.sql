-- called by: store::pick::priorities     index: instances_pick, one probe for each priority in use
-- locks: nothing
-- A loose scan: from each priority it hops to the next one, whatever the number of rows between them.
with recursive used(queue, priority) as (
    select wanted.queue, first.priority
    from unnest($1::text[]) as wanted(queue)
    cross join lateral (
        select i.priority from gen_durable.instances i
        where i.queue = wanted.queue and i.status = 'runnable' and i.crash_count < 2 and not i.held_back
        order by i.queue, i.priority limit 1
    ) first
    union all
    select used.queue, later.priority
    from used
    cross join lateral (
        select i.priority from gen_durable.instances i
        where i.queue = used.queue and i.status = 'runnable' and i.crash_count < 2 and not i.held_back and i.priority > used.priority
        order by i.queue, i.priority limit 1
    ) later
)
select queue, priority from used limit 1000
