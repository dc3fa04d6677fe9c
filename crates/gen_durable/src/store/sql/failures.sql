-- called by: store::scopes::failures     index: projection_failures_pkey
-- locks: nothing
select f.tenant, f.projection, f.position, f.attempts, f.state, f.error, f.first_at, f.last_at, f.resolved_at, e.name as event, f.redrive
from gen_durable.projection_failures f
left join gen_durable.events e on e.tenant = f.tenant and e.position = f.position
where ($1::text is null or f.tenant = $1) and ($2::text is null or f.projection = $2)
  and ($3 or f.resolved_at is null)
order by f.tenant, f.projection, f.position
limit $4
