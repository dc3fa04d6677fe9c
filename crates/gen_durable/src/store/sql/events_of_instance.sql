-- called by: store::events::read     index: events_instance
-- locks: nothing
select e.position, e.arrival_no, e.tenant, e.name, e.version, e.payload::text as payload, e.headers::text as headers, e.at, e.instance_id, e.step
from gen_durable.events e
where e.instance_id = $1 and e.arrival_no > $2
order by e.arrival_no
limit $3
