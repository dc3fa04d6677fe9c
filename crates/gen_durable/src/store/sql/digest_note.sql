-- called by: store::projections::note_digest     index: projections_pkey
-- locks: the scope's row
update gen_durable.projections p
set digest = $3, digest_position = $4, digest_at = gen_durable.clock()
where p.tenant = $1 and p.projection = $2
