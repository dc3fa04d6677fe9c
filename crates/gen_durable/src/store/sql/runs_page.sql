-- called by: store::runs::page     index: projection_runs_pkey, projection_runs_by_name, projection_runs_by_scope
-- locks: nothing
-- Returns a page of runs of projections, the newest first: of all runs, of one projection, or of
-- one scope.
with page as materialized (
    (select r.* from gen_durable.projection_runs r
     where $1::text is null and r.id < $3
     order by r.id desc limit $4)
    union all
    (select r.* from gen_durable.projection_runs r
     where $2::text is null and r.projection = $1 and r.id < $3
     order by r.id desc limit $4)
    union all
    (select r.* from gen_durable.projection_runs r
     where r.projection = $1 and r.tenant = $2 and r.id < $3
     order by r.id desc limit $4)
)
select r.id, r.tenant, r.projection, r.kind, r.status, r.generation, r.position,
    coalesce(case when r.kind in ('shadow', 'verify') and r.finished_at is null then p.position end, r.target) as target,
    r.verdict, r.error, r.requested_by, r.inserted_at, r.started_at, r.updated_at, r.finished_at, r.owner::text as owner
from page r
left join gen_durable.projections p on p.tenant = r.tenant and p.projection = r.projection
order by r.id desc
