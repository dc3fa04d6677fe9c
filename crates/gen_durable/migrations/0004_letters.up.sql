-- 0004: the acts for people who type them: one instance, and what became of it.

-- Enqueue one instance: select gen_durable.enqueue('send_receipt', '{"order": 42}'). Everything else by name.
--   called by: SQL      index: instances_key, if it has a key
--   locks: nothing that exists; waits for a transaction that is about to take the same key
-- Answers its id; if the key is taken, its holder's.
create function gen_durable.enqueue(
    machine text, state jsonb default '{}', step text default 'run', data jsonb default null, version int default 1,
    queue text default 'default', priority int default 0, tenant text default '', delay interval default null,
    at timestamptz default null, key text default null, scope text default 'live', traceparent text default null
) returns bigint
language sql
set search_path = gen_durable, pg_temp
as $$
    -- What is null is left out, but never inside of what the machine holds.
    select e.id from gen_durable.enqueue_all(jsonb_build_array(
        jsonb_build_object('fsm', machine, 'step', step, 'state', state)
        || case when data is null then '{}' else jsonb_build_object('data', data) end
        || jsonb_strip_nulls(jsonb_build_object('version', version, 'queue', queue, 'priority', priority, 'tenant', tenant,
            'delay', extract(epoch from delay), 'at', at, 'key', key, 'scope', scope, 'traceparent', traceparent)))) e
$$;

-- What became of an instance: its status, what it settled with, and its last error. No row: there is no such instance.
--   called by: SQL      index: instances_pkey
--   locks: nothing
create function gen_durable.result(id bigint) returns table (status text, result jsonb, error text)
language sql stable
set search_path = gen_durable, pg_temp
as $$
    select i.status::text, i.result, i.last_error from gen_durable.instances i where i.id = $1
$$;
