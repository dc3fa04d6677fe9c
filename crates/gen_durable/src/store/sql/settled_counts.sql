-- called by: store::pulse::settled     index: instances_settled, backwards (a loose scan over queues and statuses)
-- locks: nothing
-- Counts recently settled instances by second, machine, status and duration. Durations are in
-- histogram buckets, with four buckets for each doubling of a millisecond. The statement reads a
-- bounded number of rows, so it counts only a sample of a busy second.
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
select extract(epoch from date_trunc('second', looked.settled_at))::bigint as second, looked.machine, looked.status::text,
    floor(4 * ln(greatest(looked.ms, 1)) / ln(2.0::float8))::int as class, count(*) as count
from (
    select s.settled_at, s.machine, s.status, (extract(epoch from s.settled_at - s.inserted_at) * 1000)::float8 as ms
    from ranges r
    cross join lateral (
        select i.settled_at, i.inserted_at, i.machine, i.status
        from gen_durable.instances i
        where i.queue = r.queue and i.status = r.status and i.settled_at >= $1
        order by i.settled_at desc
        limit $2
    ) s
    order by s.settled_at desc
    limit $2
) looked
group by 1, 2, 3, 4
