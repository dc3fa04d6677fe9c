-- called by: store::runs::request_all     index: projections_by_name, projection_runs_open
-- locks: no existing rows
-- Requests a run for every scope of a projection that has no open run. Leaves out the other scopes.
insert into gen_durable.projection_runs (tenant, projection, kind, position, target, force, requested_by)
select p.tenant, p.projection, $2, $3, least($4, p.position), $5, $6
from gen_durable.projections p
where p.projection = $1
order by p.tenant
on conflict (tenant, projection) where finished_at is null do nothing
returning id
