-- called by: store::signal::expire     index: instances_deadlines
-- locks: the waiting rows, skipping what somebody holds
select id, queue, priority, seconds_to_next from gen_durable.expire($1)
