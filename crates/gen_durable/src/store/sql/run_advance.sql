-- called by: store::runs::advance     index: projection_runs_pkey
-- locks: the run's row
-- From where it was found, or not at all.
update gen_durable.projection_runs r
set position = $3, applied = $4, owner = $5::text::uuid, owned_until = statement_timestamp() + make_interval(secs => $6),
    updated_at = gen_durable.clock()
where r.id = $1 and r.position = $2 and r.status = 'running'
returning true
