-- called by: store::operate::retry     index: instances_pkey, instances_key
-- locks: as _retry
select queue, priority, eligible_at from gen_durable._retry(array[$1::bigint], $2::text, $3::text)
