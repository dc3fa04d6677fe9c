-- Reads the next page of a bulk action after its cursor: at most p_rows_max instances, of which at
-- most p_matches_max match. Returns the cursor, the matching instances, the id up to which the page
-- has read, the number of instances read, and whether the page is the last one.
--   called by: store::bulk::page
--   index: instances_by_key, instances_by_error_group, instances_by_failed_step, instances_aside or
--   instances_by_tenant, by the conditions; instances_pkey without such a condition
--   locks: nothing
-- A key prefix is read by its index only if fewer than p_rows_max keys have the prefix, since the
-- index is in the order of the keys.
create function gen_durable._bulk_page(p_id bigint, p_rows_max int, p_matches_max int)
returns table (cursor bigint, ids bigint[], read_to bigint, examined int, is_last boolean)
language plpgsql
set enable_sort = off
as $$
-- planner: pinned
#variable_conflict use_column
declare
    bulk gen_durable.bulk_actions;
    read_by text;
    rows_read bigint[];
begin
    select b.* into bulk from gen_durable.bulk_actions b where b.id = p_id;
    cursor := bulk.cursor;
    read_by := case
        when bulk.key is not null then 'key'
        when bulk.error_group is not null then 'error_group'
        when bulk.status in ('failed', 'stuck') and bulk.machine is not null and bulk.step is not null then 'failed_step'
        when bulk.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled') then 'status'
        when bulk.tenant <> '' then 'tenant'
        else 'id' end;
    if bulk.key is null and bulk.key_prefix is not null then
        execute format('select array_agg(k.id order by k.id) from (select i.id from gen_durable.instances i where %s limit $3) k',
            (gen_durable._search_range('prefix'))[1])
        into rows_read
        using bulk.id_max + 1, bulk.cursor + 1, p_rows_max, null, null, null, null, null, null, null, bulk.key_prefix,
            null, null, null, null, null, bulk.key_prefix_end;
    end if;
    if bulk.key is not null or bulk.key_prefix is null or cardinality(rows_read) = p_rows_max then
        execute format(
            'select array_agg(k.id) from (select i.id from gen_durable.instances i where %s order by %s limit $3) k',
            (gen_durable._search_range(read_by))[1], replace((gen_durable._search_range(read_by))[2], ' desc', ''))
        into rows_read
        using bulk.id_max + 1, bulk.cursor + 1, p_rows_max, bulk.machine, null, bulk.status, bulk.step, null, bulk.tenant,
            bulk.key, null, null, null, null, null, null, null, bulk.error_group_id;
    end if;
    rows_read := coalesce(rows_read, '{}');
    select array_agg(m.id order by m.id) into ids
    from (select i.id from gen_durable.instances i
          where i.id = any (rows_read) and gen_durable._bulk_matches(bulk, i)
          order by i.id limit p_matches_max) m;
    is_last := cardinality(rows_read) < p_rows_max and coalesce(cardinality(ids), 0) < p_matches_max;
    read_to := case when is_last then bulk.id_max
                    when cardinality(ids) = p_matches_max then ids[p_matches_max]
                    else rows_read[p_rows_max] end;
    examined := (select count(*)::int from unnest(rows_read) as r(id) where r.id <= read_to);
    return next;
end $$;
