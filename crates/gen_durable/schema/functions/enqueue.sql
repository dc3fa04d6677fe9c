-- Enqueues one instance: select gen_durable.enqueue('send_receipt', '{"order": 42}'). Options are
-- named arguments. Returns the id of the new instance, or, if another instance holds the key, the
-- id of that instance.
--   called by: SQL      index: instances_key, if the instance has a key
--   locks: no existing row; waits for an open transaction that has inserted the same key
create function gen_durable.enqueue(
    machine text, state jsonb default '{}', step text default 'run', data jsonb default null, version int default 1,
    queue text default 'default', priority int default 0, tenant text default '', delay interval default null,
    at timestamptz default null, key text default null, scope text default 'live', traceparent text default null
) returns bigint
language sql
set search_path = gen_durable, pg_temp
as $$
    -- Leaves out options of the new instance that are null. A null inside the state or the data
    -- stays.
    select e.id from gen_durable.enqueue_all(jsonb_build_array(
        jsonb_build_object('machine', machine, 'step', step, 'state', state)
        || case when data is null then '{}' else jsonb_build_object('data', data) end
        || jsonb_strip_nulls(jsonb_build_object('version', version, 'queue', queue, 'priority', priority, 'tenant', tenant,
            'delay', extract(epoch from delay), 'at', at, 'key', key, 'scope', scope, 'traceparent', traceparent)))) e
$$;
