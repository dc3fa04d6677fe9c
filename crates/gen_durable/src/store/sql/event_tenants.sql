-- called by: store::events::tenants     index: event_heads_pkey, events_log
-- locks: nothing
select h.tenant, coalesce((
    select e.position from gen_durable.events e
    where e.tenant = h.tenant and e.position is not null order by e.position desc limit 1), 0) as position
from gen_durable.event_heads h
where h.tenant > $1 or $1 is null
order by h.tenant
limit $2
