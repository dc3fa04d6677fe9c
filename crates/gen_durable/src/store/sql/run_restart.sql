-- called by: store::runs::restart     index: projection_runs_pkey, projections_pkey
-- locks: the rows of the scope and of the run, which this transaction already holds
-- Starts a rebuild in place after the worker deleted the rows of the scope: sets the cursor of the
-- scope back to the beginning of the log. Normal batches of the scope write the rows anew, and
-- count as a replay up to the position that the cursor had before.
with run as materialized (
    select r.id, r.tenant, r.projection from gen_durable.projection_runs r where r.id = $1 and r.status = 'running'
),
old as materialized (
    select p.tenant, p.projection, p.position
    from gen_durable.projections p join run on p.tenant = run.tenant and p.projection = run.projection
),
begun as (
    update gen_durable.projections p
    set position = 0, applied = 0, replaying_to = old.position, version = $2, status = 'running', attempts = 0, retry_at = null,
        last_error = null, updated_at = gen_durable.clock()
    from old where p.tenant = old.tenant and p.projection = old.projection
)
update gen_durable.projection_runs r
set target = old.position, position = 0, updated_at = gen_durable.clock(),
    status = case when old.position = 0 then 'done' else 'running' end,
    finished_at = case when old.position = 0 then gen_durable.clock() end
from old where r.id = $1
returning r.target
