-- called by: store::search::page     index: instances_pkey, backwards
-- locks: nothing
-- Searches instances from the newest. Reads at most $2 rows, whatever the filters are, so that a
-- search among millions of rows has a known cost.
select looked.id, looked.tenant, looked.machine, looked.machine_version, looked.step, looked.status::text, looked.queue, looked.priority,
    looked.attempt, looked.eligible_at, looked.inserted_at, looked.updated_at, looked.settled_at, looked.key,
    looked.parent_id, left(looked.last_error, 500) as last_error, looked.awaits
from (
    select * from gen_durable.instances i where ($1::bigint is null or i.id < $1) order by i.id desc limit $2
) looked
where ($4::text is null or looked.machine = $4)
  and ($5::text is null or looked.status::text = $5)
  and ($6::text is null or looked.step = $6)
  and ($7::text is null or looked.queue = $7)
  and ($8::text is null or looked.tenant = $8)
  and ($9::text is null or looked.key = $9)
  and ($10::text is null or position(lower($10) in lower(looked.last_error)) > 0)
  and ($11::timestamptz is null or looked.inserted_at >= $11)
  and ($12::timestamptz is null or looked.inserted_at < $12)
  and ($13::int is null or looked.machine_version = $13)
order by looked.id desc
limit $3
