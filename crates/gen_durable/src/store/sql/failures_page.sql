-- called by: store::scopes::failures_page     index: projection_failures_left, events_log
-- locks: nothing
-- Returns a page of unresolved failures of projections in the order of projection, tenant and
-- position: of all scopes, of one projection, or of one scope.
with page as materialized (
    (select f.* from gen_durable.projection_failures f
     where $1::text is null and f.resolved_at is null and (f.projection, f.tenant, f.position) > ($3, $4, $5)
     order by f.projection, f.tenant, f.position limit $6)
    union all
    (select f.* from gen_durable.projection_failures f
     where $2::text is null and f.projection = $1 and f.resolved_at is null and (f.projection, f.tenant, f.position) > ($3, $4, $5)
     order by f.projection, f.tenant, f.position limit $6)
    union all
    (select f.* from gen_durable.projection_failures f
     where f.projection = $1 and f.tenant = $2 and f.resolved_at is null and f.position > $5
     order by f.position limit $6)
)
select f.tenant, f.projection, f.position, f.attempts, f.state, f.error, f.first_at, f.last_at, f.resolved_at, e.name as event, f.redrive
from page f
left join gen_durable.events e on e.tenant = f.tenant and e.position = f.position
order by f.projection, f.tenant, f.position
