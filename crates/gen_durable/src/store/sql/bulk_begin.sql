-- called by: store::bulk::begin     index: instances_pkey, bulk_actions_pkey
-- locks: the row that this statement inserts, and up to ten of the oldest bulk actions, skipping
-- rows that another transaction holds
-- Inserts a bulk action for the instances that exist now, and deletes those of the ten oldest bulk
-- actions that have ended and exceed the maximum number ($24).
with made as (
    insert into gen_durable.bulk_actions
        (action, status, machine, machine_version, step, queue, tenant, key, key_prefix, key_prefix_end, lane, partition,
         error_contains, error_group, error_group_id, since, until, retry_step, reason, actor, source, channel, expected, expected_is_exact, id_max)
    select $1, $2::text::gen_durable.durable_status, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
        $13, $14, gen_durable._error_group_of($14), $15, $16, $17, $18, $19, $20, $21, $22, $23,
        coalesce((select i.id from gen_durable.instances i order by i.id desc limit 1), 0)
    returning id
),
old as materialized (
    select b.id from gen_durable.bulk_actions b order by b.id limit 10 for update skip locked
),
gone as (
    delete from gen_durable.bulk_actions b using old
    where b.id = old.id and b.ended_at is not null and b.id <= (select id from made) - $24::bigint
)
select id from made
