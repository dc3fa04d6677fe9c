-- called by: store::fair::set_fair     index: queues_pkey
-- locks: the row of the queue
select gen_durable.set_fair($1, $2)
