-- called by: store::projections::backlog     index: event_heads_pkey, projections_pkey, events_log, projection_runs_open
-- locks: nothing
-- Scopes that have something to do and that nobody else is at: also those of tenants that nobody here has heard of. And those
-- with the rows of an older version, for a projection that does something about that by itself, unless that is under way or has failed.
select h.tenant, w.projection
from gen_durable.event_heads h
cross join unnest($1::text[], $4::int[], $5::boolean[]) as w(projection, version, eager)
left join gen_durable.projections p on p.tenant = h.tenant and p.projection = w.projection
where (p.owner is null or p.owner = $2::text::uuid or p.owned_until < statement_timestamp())
  and case
    when p.version < w.version then w.eager and not exists (
        select from gen_durable.projection_runs r
        where r.tenant = p.tenant and r.projection = p.projection
          and (r.finished_at is null or r.status = 'failed' and r.requested_by = 'version ' || w.version))
    when p.version > w.version or p.status = 'halted' or p.retry_at > gen_durable.clock() then false
    else coalesce(p.position, 0) < coalesce((
        select e.position from gen_durable.events e
        where e.tenant = h.tenant and e.position is not null order by e.position desc limit 1), 0)
  end
limit $3
