-- Locks the lanes of new instances, if the inserting statement may assign their lane positions, and
-- returns the lanes as _enter_lanes does. If this function returns no row, the instances draw
-- arrival numbers and placement assigns their positions later.
--   called by: enqueue_all, if its transaction ends with the statement
--   index: placement_watermarks_pkey; as _place, _enter_lanes
--   locks: as _place, then as _enter_lanes
-- The inserting statement may assign positions only if every instance that arrived before has its
-- position, and this transaction holds the placement lock. It may not if an entry has both a lane
-- and a partition key: placement would process that entry after later entries of its lane. It may
-- not for more than 10,000 entries: their lanes and every placement would wait while the entries
-- are inserted. It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._lanes_at_once(p_entries jsonb) returns table (tenant text, key text, taken boolean)
language plpgsql
as $$
declare
    watermark gen_durable.placement_watermarks;
    place_from bigint;
begin
    if jsonb_array_length(p_entries) > 10000 or not gen_durable._is_read_committed()
       or not jsonb_path_exists(p_entries, '$[*].lane') or jsonb_path_exists(p_entries, '$[*].key')
       or jsonb_path_exists(p_entries, '$[*] ? (exists (@.lane) && exists (@.partition))') then
        return;
    end if;
    -- This function reads the placement watermark without the placement lock: from any watermark
    -- and its open transactions, a placement finds every instance that was committed before the
    -- watermark is read. When a transaction that was open for long has ended, a placement has to
    -- read all arrival numbers that were drawn since that transaction began. A pick runs that
    -- placement, so that the enqueuing caller does not wait.
    select w.* into watermark from gen_durable.placement_watermarks w order by w.n desc limit 1;
    place_from := watermark.placed_to;
    if watermark.open_xids <> '{}' then
        place_from := gen_durable._placement_start(place_from, watermark.open_xids, watermark.open_since, pg_current_snapshot());
    end if;
    if watermark.placed_to - place_from <= 2000 and gen_durable._place(place_from, 1000) is null then
        return query select l.tenant, l.key, l.taken from gen_durable._enter_lanes(p_entries) l;
    end if;
end $$;
