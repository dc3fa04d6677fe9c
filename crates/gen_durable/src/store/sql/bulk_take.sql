-- called by: store::bulk::take     index: bulk_actions_open
-- locks: one bulk action, skipping those that another transaction holds
-- Leases the oldest open bulk action that no live runner executes to a runner with a new random id;
-- with $2, only the bulk action with this id.
update gen_durable.bulk_actions b
set runner = gen_random_uuid(), leased_until = statement_timestamp() + make_interval(secs => $1)
where b.id = (
    select o.id from gen_durable.bulk_actions o
    where o.ended_at is null and coalesce(o.leased_until < statement_timestamp(), true) and ($2::bigint is null or o.id = $2)
    order by o.id limit 1
    for no key update skip locked)
returning b.id, b.runner::text as runner, b.action
