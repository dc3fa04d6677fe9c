-- Returns the number of the group of errors that a condition names: by `like:` and the id of a
-- failed or stuck instance, or by the text of an error or of a fingerprint. Returns null if there
-- is no such instance, or no condition.
--   called by: _search_floor, _search_rows, bulk_begin.sql      index: instances_pkey      locks: nothing
create function gen_durable._error_group_of(p_condition text) returns bigint
    language sql stable
    as $$
select case when p_condition is null then null
            when p_condition ~ '^like:[0-9]{1,18}$' then (select i.error_group from gen_durable.instances i where i.id = substr(p_condition, 6)::bigint)
            else gen_durable._error_group(p_condition) end
$$;
