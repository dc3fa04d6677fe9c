-- called by: store::events::read     index: events_name
-- locks: nothing
select e.position, e.arrival_no, e.tenant, e.name, e.version, e.payload::text as payload, e.headers::text as headers, e.at, e.instance_id, e.step
from gen_durable.events e
where e.tenant = $1 and e.name = $4 and e.position > $2
order by e.position
limit $3
