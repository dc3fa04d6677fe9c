-- Returns the status of an instance, its result, and its last error; no row if the instance does
-- not exist.
--   called by: SQL      index: instances_pkey
--   locks: nothing
create function gen_durable.result(id bigint) returns table (status text, result jsonb, error text)
language sql stable
set search_path = gen_durable, pg_temp
as $$
    select i.status::text, i.result, i.last_error from gen_durable.instances i where i.id = $1
$$;
