-- called by: store::queue::resume     index: queues_pkey
-- locks: the queue's row
with deleted as (
    delete from gen_durable.queues q
    where q.name = $1 and q.paused_at is not null and q.retention is null and q.failed_retention is null
    returning q.name
), kept as (
    update gen_durable.queues q set paused_at = null, paused_by = null
    where q.name = $1 and q.paused_at is not null and (q.retention is not null or q.failed_retention is not null)
    returning q.name
)
select name from deleted union all select name from kept
