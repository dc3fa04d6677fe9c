-- called by: store::enqueue, where the transaction ends with it     index: instances_key; instances_lane, lanes_pkey
-- locks: the placer, if nobody holds it, and the lanes; waits for a transaction that is about to take the same key
select place, id, is_new, eligible_at from gen_durable.enqueue_all($1::text::jsonb, p_at_once => true) order by place
