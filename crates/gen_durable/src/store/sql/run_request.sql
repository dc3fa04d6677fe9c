-- called by: store::runs::request     index: projections_pkey, projection_runs_open
-- locks: no existing rows
-- Requests a run for an existing scope. Returns no row if the scope does not exist or if a run of
-- the scope is already open.
insert into gen_durable.projection_runs (tenant, projection, kind, position, target, force, requested_by, version)
select p.tenant, p.projection, $3, $4, least($5, p.position), $6, $7, $8
from gen_durable.projections p
where p.tenant = $1 and p.projection = $2
on conflict (tenant, projection) where finished_at is null do nothing
returning id
