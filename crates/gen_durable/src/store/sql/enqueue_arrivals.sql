-- called by: store::enqueue     index: queues_fair (it inserts into instances_pkey, instances_pick, instances_arrival_no)
-- locks: no existing rows
-- Inserts instances without a key, some of which have a lane, a partition key or limits. An
-- instance with a lane or a partition key draws an arrival number, and placement gives it its
-- position in the lane, or its partition.
-- Otherwise as enqueue.sql. The CTE assigns an id to this transaction before it draws a number: see
-- `_place_new`.
with durable as materialized (
    select pg_current_xact_id(),
        case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true) end
)
insert into gen_durable.instances
    (machine, machine_version, step, data, state, queue, priority, tenant, eligible_at, traceparent,
     partition_key, lane_key, lane_blocks, status, partition_waiting, arrival_no, limit_group, limit_weight, fair)
select e.machine, e.machine_version, e.step, e.data::jsonb, e.state::jsonb, e.queue, coalesce(e.priority, 0), coalesce(e.tenant, ''),
    gen_durable._due(e.due, e.delay), e.traceparent, e.partition_key, e.lane_key, coalesce(e.lane_blocks, false),
    case when e.lane_key is null then 'runnable' else 'queued' end::gen_durable.durable_status,
    e.partition_key is not null and e.lane_key is null,
    case when e.partition_key is not null or e.lane_key is not null then nextval('gen_durable.arrival_numbers') end,
    e.limit_group, e.limit_weight, e.queue = any (array(select q.name from gen_durable.queues q where q.fair))
from durable
cross join unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[], $7::smallint[], $8::text[],
            $9::timestamptz[], $10::float8[], $11::text[], $12::text[], $13::text[], $14::boolean[], $15::text[], $16::bigint[])
    with ordinality as e(machine, machine_version, step, data, state, queue, priority, tenant, due, delay, traceparent,
                         partition_key, lane_key, lane_blocks, limit_group, limit_weight, place)
order by e.place
returning id, eligible_at
