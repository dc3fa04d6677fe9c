-- called by: store::enqueue     index: none (it inserts into instances_pkey and instances_pick)
-- locks: nothing that exists
-- An array may be empty where every value is the usual one. A due time in the past is now: a row must not appear behind where the pickers have already looked.
-- What was answered is durable, whatever the role or the database was set to.
with durable as materialized (
    select case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true) end
)
insert into gen_durable.instances
    (fsm, fsm_version, step, data, state, queue, priority, tenant, eligible_at, traceparent)
select e.fsm, e.fsm_version, e.step, e.data::jsonb, e.state::jsonb, e.queue, coalesce(e.priority, 0), coalesce(e.tenant, ''),
    gen_durable.due(e.due, e.delay), e.traceparent
from durable
cross join unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[], $7::smallint[], $8::text[],
            $9::timestamptz[], $10::float8[], $11::text[])
    with ordinality as e(fsm, fsm_version, step, data, state, queue, priority, tenant, due, delay, traceparent, place)
order by e.place
returning id, eligible_at
