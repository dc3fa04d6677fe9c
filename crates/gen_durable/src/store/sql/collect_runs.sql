-- called by: store::runs::collect     index: projection_runs_finished, projection_runs_pkey, projection_failures_resolved, projection_failures_pkey
-- locks: the runs and failures that this statement deletes, skipping rows that another transaction
-- holds
-- Deletes finished runs that have no retired rows left to delete, and resolved failures of
-- projections, if the runs and failures ended more than $1 seconds ago: up to $2 of each.
with old_runs as materialized (
    select r.id from gen_durable.projection_runs r
    where r.finished_at < gen_durable.clock() - make_interval(secs => $1) and r.retired is null
    order by r.finished_at limit $2
    for update skip locked
),
gone_runs as (
    delete from gen_durable.projection_runs r using old_runs where r.id = old_runs.id returning 1
),
old_failures as materialized (
    select f.tenant, f.projection, f.position from gen_durable.projection_failures f
    where f.resolved_at < gen_durable.clock() - make_interval(secs => $1)
    order by f.resolved_at limit $2
    for update skip locked
),
gone_failures as (
    delete from gen_durable.projection_failures f using old_failures o
    where f.tenant = o.tenant and f.projection = o.projection and f.position = o.position
    returning 1
)
select greatest((select count(*) from gone_runs), (select count(*) from gone_failures))
