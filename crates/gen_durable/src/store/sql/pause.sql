-- called by: store::queue::pause     index: queues_pkey
-- locks: the queue's row
insert into gen_durable.queues (name, paused_at, paused_by) values ($1, statement_timestamp(), $2)
on conflict (name) do update set paused_at = excluded.paused_at, paused_by = excluded.paused_by where queues.paused_at is null
returning name
