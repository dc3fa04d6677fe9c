-- called by: store::queue::resume     index: queues_pkey
-- locks: the queue's row
delete from gen_durable.queues where name = $1 and paused_at is not null returning name
