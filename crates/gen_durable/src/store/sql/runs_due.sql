-- called by: store::runs::due     index: projection_runs_due, projections_pkey
-- locks: nothing
select r.id, r.tenant, r.projection, r.kind, r.status, r.retired
from unnest($1::text[], $2::int[]) as build(projection, version)
join gen_durable.projection_runs r on r.projection = build.projection and (r.finished_at is null or r.retired is not null)
left join gen_durable.projections p on p.tenant = r.tenant and p.projection = r.projection
where r.retired is not null
   -- Includes a run with an owner but no expiry time: the owner opened the run, has not advanced
   -- it, and may have crashed.
   or (r.owner = $3::text::uuid or coalesce(r.owned_until < statement_timestamp(), true))
      -- Leaves out runs that need a newer version of the projection: a newer build executes them.
      and coalesce(greatest(p.version, r.version), 0) <= build.version
      -- Leaves out a rebuild in place that has begun: normal batches of the scope continue it.
      and not (r.kind = 'rebuild' and r.status = 'running')
order by r.id
limit 100
