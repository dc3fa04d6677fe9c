-- called by: store::keyed::partitions     index: instances_partition_holder, instances_partition_waiting (a loose scan over the keys)
-- locks: nothing
-- Returns a page of the partition keys that have a holder or waiting instances, by tenant and key,
-- after ($3, $4). The statement counts waiting instances up to 10,001.
with recursive waiting(tenant, key, place) as (
    (select i.tenant, i.partition_key, 1
     from gen_durable.instances i
     where i.partition_waiting and (i.tenant, i.partition_key) > ($3, $4)
       and ($1::text is null or i.tenant = $1) and ($2::text is null or i.partition_key = $2)
     order by i.tenant, i.partition_key
     limit 1)
    union all
    select later.tenant, later.partition_key, waiting.place + 1
    from waiting
    cross join lateral (
        select i.tenant, i.partition_key from gen_durable.instances i
        where i.partition_waiting and (i.tenant, i.partition_key) > (waiting.tenant, waiting.key)
          and ($1::text is null or i.tenant = $1) and ($2::text is null or i.partition_key = $2)
        order by i.tenant, i.partition_key
        limit 1
    ) later
    where waiting.place < $5
),
holders as materialized (
    select i.tenant, i.partition_key as key
    from gen_durable.instances i
    where i.partition_key is not null and not i.partition_waiting and (i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null)
      and (i.tenant, i.partition_key) > ($3, $4)
      and ($1::text is null or i.tenant = $1) and ($2::text is null or i.partition_key = $2)
    order by i.tenant, i.partition_key
    limit $5
),
page as materialized (
    select tenant, key from waiting union select tenant, key from holders order by tenant, key limit $5
)
select page.tenant, page.key,
    (select count(*) from (
        select from gen_durable.instances i
        where i.tenant = page.tenant and i.partition_key = page.key and i.partition_waiting
        limit 10001) waits) as waiting,
    (select i.id from gen_durable.instances i
     where i.tenant = page.tenant and i.partition_key = page.key and not i.partition_waiting
       and (i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null)) as holder
from page
order by page.tenant, page.key
