-- called by: store::rollup::read     index: rollups_pkey
-- locks: nothing
-- Returns the sums of the buckets of one length in a period, of one machine or queue if it is
-- given. A bucket has at most 101 rows (see `_add_rollups`), and a period at most 170 buckets.
with chosen as materialized (
    select r.bucket, r.steps, r.failures, r.done, r.failed, r.queue_time, r.duration
    from gen_durable.rollups r
    where r.seconds = $1 and r.bucket >= $2 and r.bucket < $3
      and ($4::text is null or r.machine = $4) and ($5::text is null or r.queue = $5)
),
sums as (
    select c.bucket, sum(c.steps)::bigint as steps, sum(c.failures)::bigint as failures,
        sum(c.done)::bigint as done, sum(c.failed)::bigint as failed
    from chosen c group by c.bucket
),
classes as (
    select c.bucket, u.class, sum(u.queue_time)::bigint as queue_time, sum(u.duration)::bigint as duration
    from chosen c cross join lateral unnest(c.queue_time, c.duration) with ordinality as u(queue_time, duration, class)
    group by c.bucket, u.class
),
histograms as (
    select h.bucket, array_agg(h.queue_time order by h.class) as queue_time, array_agg(h.duration order by h.class) as duration
    from classes h group by h.bucket
)
select s.bucket, null::text as machine, null::text as queue, s.steps, s.failures, s.done, s.failed, h.queue_time, h.duration
from sums s join histograms h using (bucket)
order by s.bucket
