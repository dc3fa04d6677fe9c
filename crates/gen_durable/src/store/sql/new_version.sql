-- called by: store::projections::go_on     index: projections_pkey
-- locks: the scope's row
-- Marks the rows of a scope, which an older version of the projection wrote, as rows of version $3.
update gen_durable.projections p set version = $3 where p.tenant = $1 and p.projection = $2 and p.version < $3
returning true
