-- Returns the first p_limit instances that meet all conditions of a search, the newest or the
-- oldest first, among those with an id of at least p_from and below p_below. The caller has chosen
-- one end of these ids by `_search_floor`, so the statement reads a bounded number of rows by the
-- index.
--   called by: search.sql
--   index: instances_pkey, instances_aside, instances_by_tenant, instances_by_failed_step,
--   instances_by_error_group, instances_by_key      locks: nothing
-- Sorting is off, as in `_search_floor`. Only the instances with a prefix of a key are sorted:
-- their index is in the order of the keys.
create function gen_durable._search_rows(
    p_index text, p_below bigint, p_from bigint, p_limit int, p_machine text, p_version int, p_status text, p_step text,
    p_queue text, p_tenant text, p_key text, p_prefix text, p_lane text, p_partition text, p_error text,
    p_since timestamptz, p_until timestamptz, p_after text, p_error_group text, p_oldest_first boolean
) returns table (
    id bigint, tenant text, machine text, machine_version int, step text, status text, queue text, priority smallint,
    attempt int, eligible_at timestamptz, inserted_at timestamptz, updated_at timestamptz, settled_at timestamptz,
    key text, parent_id bigint, last_error text, awaits text[])
language plpgsql stable
set enable_sort = off
as $$
-- planner: pinned
declare
    read_by text[] := gen_durable._search_range(p_index);
    ordered_by text := case p_index when 'prefix' then 'i.id + 0 desc' else read_by[2] end;
begin
    return query execute format(
        $q$select i.id, i.tenant, i.machine, i.machine_version, i.step, i.status::text, i.queue, i.priority,
               i.attempt, i.eligible_at, i.inserted_at, i.updated_at, i.settled_at, i.key, i.parent_id,
               left(i.last_error, 500), i.awaits
           from gen_durable.instances i
           where %s
             and ($4 is null or i.machine = $4)
             and ($5 is null or i.machine_version = $5)
             and ($6 is null or i.status::text = $6)
             and ($7 is null or i.step = $7)
             and ($8 is null or i.queue = $8)
             and ($9 is null or i.tenant = $9)
             and ($10 is null or i.key = $10)
             and ($11 is null or starts_with(i.key, $11))
             and ($12 is null or i.lane_key = $12)
             and ($13 is null or i.partition_key = $13)
             and ($14 is null or position(lower($14) in lower(i.last_error)) > 0)
             and ($15 is null or i.inserted_at >= $15)
             and ($16 is null or i.inserted_at < $16)
             and ($18 is null or i.error_group = $18)
           order by %s
           limit $3$q$,
        read_by[1], case when p_oldest_first then replace(ordered_by, ' desc', '') else ordered_by end)
    using p_below, p_from, p_limit, p_machine, p_version, p_status, p_step, p_queue, p_tenant, p_key, p_prefix,
        p_lane, p_partition, p_error, p_since, p_until, p_after, gen_durable._error_group_of(p_error_group);
end $$;
