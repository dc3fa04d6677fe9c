-- called by: store::lease::release_expired     index: workers_pkey, instances_held, instances_pkey
-- locks: the expired worker's row first, so that the worker cannot renew its lease before this
-- transaction ends; then instances by id, skipping rows that another transaction holds
-- Frees the lanes and partition keys that cancelled instances kept while their step ran, after the
-- worker of the step has expired: the step counts as ended.
with expired as materialized (
    select w.id from gen_durable.workers w
    where w.id = $1::text::uuid and w.lease_expires_at < statement_timestamp()
    for update
),
free as materialized (
    select i.id from gen_durable.instances i
    where i.locked_by = (select id from expired) and i.status = 'cancelled'
    order by i.id
    limit $2
    for no key update skip locked
)
select unnest(gen_durable._release(array(select free.id from free)))
