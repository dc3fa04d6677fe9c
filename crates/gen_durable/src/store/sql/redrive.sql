-- called by: store::redrive::mark     index: projection_failures_pkey
-- locks: the failures' rows
update gen_durable.projection_failures f
set redrive = true
where f.tenant = $1 and f.projection = $2 and ($3::bigint is null or f.position = $3) and f.state = 'parked'
returning f.position
