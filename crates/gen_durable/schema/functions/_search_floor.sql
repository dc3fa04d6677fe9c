-- Returns the id to which the first p_limit instances reach that a search reads by an index: the
-- lowest one, or the highest one if the search begins with the oldest. Also returns the number of
-- these instances. The search continues after that id; with fewer than p_limit of them, the page is
-- the last one.
--   called by: search_floor.sql
--   index: instances_pkey, instances_aside, instances_by_tenant, instances_by_failed_step,
--   instances_by_error_group, instances_by_key      locks: nothing
-- Sorting is off, since the planner does not know how few rows the page needs, and would read and
-- sort all instances of a status or tenant.
create function gen_durable._search_floor(
    p_index text, p_below bigint, p_from bigint, p_limit int, p_machine text, p_status text, p_step text,
    p_tenant text, p_key text, p_prefix text, p_after text,
    p_error_group text, p_oldest_first boolean
) returns table (reached bigint, reached_at timestamptz, rows_read bigint)
language plpgsql stable
set enable_sort = off
as $$
-- planner: pinned
declare
    read_by text[] := gen_durable._search_range(p_index);
begin
    execute format(
        'select %s(looked.id), count(*) from (select i.id from gen_durable.instances i where %s order by %s limit $3) looked',
        case when p_oldest_first then 'max' else 'min' end, read_by[1],
        case when p_oldest_first then replace(read_by[2], ' desc', '') else read_by[2] end)
    into reached, rows_read
    using p_below, p_from, p_limit, p_machine, null::int, p_status, p_step, null::text, p_tenant, p_key, p_prefix,
        null::text, null::text, null::text, null::timestamptz, null::timestamptz, p_after,
        gen_durable._error_group_of(p_error_group);
    select i.inserted_at into reached_at from gen_durable.instances i where i.id = reached;
    return next;
end $$;
