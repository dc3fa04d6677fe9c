-- called by: store::enqueue, for instances with a key     index: instances_key
-- locks: no existing rows; waits for a transaction that has inserted the same key and not committed
-- yet
select place, id, is_new, eligible_at from gen_durable.enqueue_all($1::text::jsonb) order by place
