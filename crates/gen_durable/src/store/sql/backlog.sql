-- called by: store::projections::backlog     index: event_heads_pkey, projections_pkey, events_log
-- locks: nothing
-- Scopes that have something to do and that nobody else is at: also those of tenants that nobody here has heard of.
select h.tenant, w.projection
from gen_durable.event_heads h
cross join unnest($1::text[]) as w(projection)
left join gen_durable.projections p on p.tenant = h.tenant and p.projection = w.projection
where (p.tenant is null or p.status <> 'halted')
  and (p.retry_at is null or p.retry_at <= gen_durable.clock())
  and (p.owner is null or p.owner = $2::text::uuid or p.owned_until < statement_timestamp())
  and coalesce(p.position, 0) < coalesce((
    select e.position from gen_durable.events e
    where e.tenant = h.tenant and e.position is not null order by e.position desc limit 1), 0)
limit $3
