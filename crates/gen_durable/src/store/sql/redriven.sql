-- called by: store::redrive::applied     index: projection_failures_pkey
-- locks: the failure's row
-- Records the outcome of a redrive: without an error ($4) the failure becomes resolved, otherwise
-- the event stays parked.
update gen_durable.projection_failures f
set redrive = false,
    state = case when $4::text is null then 'resolved' else f.state end,
    resolved_at = case when $4::text is null then gen_durable.clock() end,
    attempts = f.attempts + ($4::text is not null)::int,
    error = coalesce($4, f.error),
    last_at = gen_durable.clock()
where f.tenant = $1 and f.projection = $2 and f.position = $3 and f.state = 'parked'
returning true
