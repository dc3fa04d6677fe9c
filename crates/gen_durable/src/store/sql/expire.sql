-- called by: store::timer::expire     index: instances_deadlines
-- locks: the waiting instances, skipping rows that another transaction holds
select id, queue, priority, due_at, now from gen_durable._expire($1, $2, $3, $4)
