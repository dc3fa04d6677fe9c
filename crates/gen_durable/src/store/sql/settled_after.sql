-- called by: store::settled::after     index: instances_settled (a loose scan over queues and statuses)
-- locks: nothing
-- Returns the first $5 instances that settled after ($3, $4), in the order of settling: of one
-- queue and one status, or of all. Instances of one commit have the same settled_at, so the id
-- orders them.
with recursive ranges(queue, status) as (
    (select i.queue, i.status from gen_durable.instances i
     where i.settled_at is not null order by i.queue desc, i.status desc limit 1)
    union all
    select earlier.queue, earlier.status from ranges r
    cross join lateral (
        select i.queue, i.status from gen_durable.instances i
        where i.settled_at is not null and (i.queue, i.status) < (r.queue, r.status)
        order by i.queue desc, i.status desc limit 1
    ) earlier
)
select s.*
from ranges r
cross join lateral (
    select i.id, i.tenant, i.machine, i.machine_version, i.step, i.status::text, i.queue, i.priority, i.attempt, i.eligible_at,
        i.inserted_at, i.updated_at, i.settled_at, i.key, i.parent_id, left(i.last_error, 500) as last_error, i.awaits
    from gen_durable.instances i
    where i.queue = r.queue and i.status = r.status and i.settled_at >= $3 and (i.settled_at, i.id) > ($3, $4)
    order by i.settled_at, i.id
    limit $5
) s
where ($1::text is null or r.queue = $1) and ($2::text is null or r.status::text = $2)
order by s.settled_at, s.id
limit $5
