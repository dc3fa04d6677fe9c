-- called by: store::signal::deliver_all     index: instances_pkey, instances_key; signals_dedup
-- locks: the rows of the targets, by id
select place, answer from gen_durable.signal_all($1::text::jsonb, $2) order by place
