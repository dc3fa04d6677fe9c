-- called by: store::queue::depth     index: instances_pick
-- locks: nothing
-- Counts the due instances of a queue up to an upper bound: a metric must not cost more when the
-- backlog grows. Reads one index range per priority in use, so that the statement does not read
-- instances that are due later.
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
