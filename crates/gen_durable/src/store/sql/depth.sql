-- called by: store::queue::depth     index: instances_pick
-- locks: nothing
-- Counts due instances up to an upper bound: a gauge must not cost more when the backlog grows.
-- Reads one range per priority in use, so that instances that are due later are not read.
select count(*) from (
    select from unnest($2::smallint[]) as used(priority)
    cross join lateral (
        select from gen_durable.instances i
        where i.queue = $1 and i.priority = used.priority and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
          and i.eligible_at <= gen_durable.clock()
        limit 10001
    ) due
    limit 10001
) due
