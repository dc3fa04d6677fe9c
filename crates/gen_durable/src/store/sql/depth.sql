-- called by: store::queue::depth     index: instances_pick
-- locks: nothing
-- Counted up to a bound: a gauge must not cost more the worse things are.
select count(*) from (
    select from gen_durable.instances
    where queue = $1 and status = 'runnable' and crash_count < 2 and eligible_at <= gen_durable.clock()
    limit 10001
) due
