-- called by: store::enqueue     index: queues_fair (it inserts into instances_pkey and instances_pick)
-- locks: no existing rows
-- Inserts instances without a key, a lane or a partition. An array may be empty if every value is
-- the default. A due time in the past becomes now: a new instance must not appear before the point
-- up to which pickers have already read the index. Sets `synchronous_commit` for this transaction
-- if the role or the database has it off, so that an acknowledged instance is durable.
with durable as materialized (
    select case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true) end
)
insert into gen_durable.instances
    (machine, machine_version, step, data, state, queue, priority, tenant, eligible_at, traceparent, fair)
select e.machine, e.machine_version, e.step, e.data::jsonb, e.state::jsonb, e.queue, coalesce(e.priority, 0), coalesce(e.tenant, ''),
    gen_durable._due(e.due, e.delay), e.traceparent, e.queue = any (array(select q.name from gen_durable.queues q where q.fair))
from durable
cross join unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[], $7::smallint[], $8::text[],
            $9::timestamptz[], $10::float8[], $11::text[])
    with ordinality as e(machine, machine_version, step, data, state, queue, priority, tenant, due, delay, traceparent, place)
order by e.place
returning id, eligible_at
