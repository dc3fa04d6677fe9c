-- Records an event in the caller's transaction, for SQL and other languages. The event gets its
-- position after that transaction has committed.
--   called by: SQL      index: none
--   locks: nothing
create function gen_durable.record(
    tenant text, name text, payload jsonb, version int default 1, headers jsonb default null
) returns bigint
language sql
set search_path = gen_durable, pg_temp
as $$
    insert into gen_durable.events (tenant, name, version, payload, headers, xid)
    values (coalesce(record.tenant, ''), record.name, coalesce(record.version, 1), record.payload, record.headers, pg_current_xact_id())
    returning arrival_no
$$;
