-- Reads the next page of a bulk action after its cursor: at most p_rows_max instances, of which at
-- most p_matches_max match. Returns the cursor, the matching instances, the id up to which the page
-- has read, the number of instances read, and whether the page is the last one.
--   called by: store::bulk::page
--   index: instances_aside; instances_pkey for a status that is not in that index
--   locks: nothing
create function gen_durable._bulk_page(p_id bigint, p_rows_max int, p_matches_max int)
returns table (cursor bigint, ids bigint[], epochs bigint[], errors text[], read_to bigint, examined int, is_last boolean)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    bulk gen_durable.bulk_actions;
    rows_read bigint[];
begin
    select b.* into bulk from gen_durable.bulk_actions b where b.id = p_id;
    cursor := bulk.cursor;
    if bulk.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled') then
        rows_read := array(
            select i.id from gen_durable.instances i
            where i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
              and i.status = bulk.status and i.id > bulk.cursor and i.id <= bulk.id_max
            order by i.status, i.id limit p_rows_max);
    else
        rows_read := array(
            select i.id from gen_durable.instances i
            where i.id > bulk.cursor and i.id <= bulk.id_max
            order by i.id limit p_rows_max);
    end if;
    select array_agg(m.id order by m.id), array_agg(m.claim_epoch order by m.id), array_agg(m.error order by m.id)
    into ids, epochs, errors
    from (select i.id, i.claim_epoch, left(i.last_error, 500) as error
          from gen_durable.instances i
          where i.id = any (rows_read) and gen_durable._bulk_matches(bulk, i)
          order by i.id limit p_matches_max) m;
    is_last := cardinality(rows_read) < p_rows_max and coalesce(cardinality(ids), 0) < p_matches_max;
    read_to := case when is_last then bulk.id_max
                    when cardinality(ids) = p_matches_max then ids[p_matches_max]
                    else rows_read[p_rows_max] end;
    examined := (select count(*)::int from unnest(rows_read) as r(id) where r.id <= read_to);
    return next;
end $$;
