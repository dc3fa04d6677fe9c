-- called by: store::rollup::read     index: rollups_pkey
-- locks: nothing
-- Returns the sums of a period by machine and queue, the pairs with the most results of steps
-- first. It reads the same rows as `rollup_points.sql`.
with chosen as materialized (
    select r.machine, r.queue, r.steps, r.failures, r.done, r.failed, r.queue_time, r.duration
    from gen_durable.rollups r
    where r.seconds = $1 and r.bucket >= $2 and r.bucket < $3
      and ($4::text is null or r.machine = $4) and ($5::text is null or r.queue = $5)
),
sums as (
    select c.machine, c.queue, sum(c.steps)::bigint as steps, sum(c.failures)::bigint as failures,
        sum(c.done)::bigint as done, sum(c.failed)::bigint as failed
    from chosen c group by c.machine, c.queue
    order by 3 desc, 1, 2 limit $6
),
classes as (
    select c.machine, c.queue, u.class, sum(u.queue_time)::bigint as queue_time, sum(u.duration)::bigint as duration
    from chosen c cross join lateral unnest(c.queue_time, c.duration) with ordinality as u(queue_time, duration, class)
    group by c.machine, c.queue, u.class
),
histograms as (
    select h.machine, h.queue, array_agg(h.queue_time order by h.class) as queue_time, array_agg(h.duration order by h.class) as duration
    from classes h group by h.machine, h.queue
)
select $2 as bucket, s.machine, s.queue, s.steps, s.failures, s.done, s.failed, h.queue_time, h.duration
from sums s join histograms h using (machine, queue)
order by s.steps desc, s.machine, s.queue
