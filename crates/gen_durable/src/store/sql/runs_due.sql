-- called by: store::runs::due     index: projection_runs_open, projection_runs_retired
-- locks: nothing
select r.id, r.tenant, r.projection, r.kind, r.status, r.retired
from gen_durable.projection_runs r
where r.projection = any ($1)
  and ((r.finished_at is null and (r.owner is null or r.owner = $2::text::uuid or r.owned_until < statement_timestamp()))
       or r.retired is not null)
  -- A rebuild in place that has begun is live's business.
  and not (r.kind = 'rebuild' and r.status = 'running')
order by r.id
limit 100
