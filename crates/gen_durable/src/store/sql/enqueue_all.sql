-- called by: store::enqueue, for instances that carry a key     index: instances_key
-- locks: nothing that exists; waits for a transaction that is about to take the same key
select place, id, is_new, eligible_at from gen_durable.enqueue_all($1::text::jsonb) order by place
