-- called by: store::redrive::marked     index: projection_failures_redrive, projections_pkey, projection_runs_open
-- locks: nothing
-- Returns the parked events that are marked for a redrive. Leaves out an event if `_project_open`
-- would block its redrive: the cursor of the scope is before the event, or a run of the scope is
-- open.
select f.tenant, f.projection, f.position
from gen_durable.projection_failures f
join gen_durable.projections p on p.tenant = f.tenant and p.projection = f.projection and p.position >= f.position
where f.redrive and f.projection = any ($1)
  and not exists (
    select from gen_durable.projection_runs r
    where r.tenant = f.tenant and r.projection = f.projection and r.finished_at is null)
order by f.tenant, f.projection, f.position
limit 100
