-- called by: store::projections::cursor     index: projections_pkey
-- locks: nothing
select p.position, p.status, p.last_error, p.generation, p.applied, p.version
from gen_durable.projections p where p.tenant = $1 and p.projection = $2
