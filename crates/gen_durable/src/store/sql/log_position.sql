-- called by: store::events::log_position     index: events_log
-- locks: nothing
select coalesce((
    select e.position from gen_durable.events e where e.tenant = $1 and e.position is not null order by e.position desc limit 1), 0)
