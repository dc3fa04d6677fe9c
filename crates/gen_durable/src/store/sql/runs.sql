-- called by: store::runs::list     index: projection_runs_pkey
-- locks: nothing
select r.id, r.tenant, r.projection, r.kind, r.status, r.generation, r.position,
    coalesce(case when r.kind in ('shadow', 'verify') and r.finished_at is null then p.position end, r.target) as target,
    r.verdict, r.error, r.requested_by, r.inserted_at, r.started_at, r.updated_at, r.finished_at, r.owner::text as owner
from gen_durable.projection_runs r
left join gen_durable.projections p on p.tenant = r.tenant and p.projection = r.projection
where ($1::bigint is null or r.id = $1) and ($2::text is null or r.tenant = $2) and ($3::text is null or r.projection = $3)
order by r.id desc
limit $4
