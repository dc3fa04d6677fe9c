-- called by: store::projections::redrives     index: projection_failures_redrive
-- locks: nothing
select f.tenant, f.projection, f.position
from gen_durable.projection_failures f
where f.redrive and f.projection = any ($1)
order by f.tenant, f.projection, f.position
limit 100
