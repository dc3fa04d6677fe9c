-- Places the instances that drew an arrival number after the last placement, and moves the
-- watermark.
--   called by: _place_arrivals, _set_aside_refused, _repair
--   index: placement_watermarks_pkey; as _place
--   locks: the placement lock; if another transaction holds it, this function does nothing; as
--   _place
-- A transaction may draw a number long before it commits. The watermark rises above such a number,
-- and its row records the transactions that were open at that time. When one of these transactions
-- has ended, the next placement reads once all numbers since that transaction began. So a
-- transaction that stays open costs a pick nothing, although the index keeps an entry for every
-- number that was drawn and placed since the transaction began. No instance is missed:
--   1. A placement reads the last number that was drawn, and gets its own transaction id after
--   that. Every other transaction gets its id before it draws a number. So every transaction that
--   drew one of these numbers has a smaller id than the placement.
--   2. The next placement that moves the watermark has a newer snapshot. In this snapshot, each of
--   those transactions either has ended, and its rows are visible and get placed, or is listed as
--   open. The snapshot's xmax is above the id of the first placement, since the first placement has
--   ended.
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._place_new(p_limit int) returns void
language plpgsql
as $$
declare
    watermark gen_durable.placement_watermarks;
    drawn_to bigint;
    seen pg_snapshot;
    start bigint;
    reached bigint;
    moves_to bigint;
begin
    if pg_current_xact_id_if_assigned() is null then
        select case when a.is_called then a.last_value else a.last_value - 1 end into drawn_to from gen_durable.arrival_numbers a;
    end if;
    perform from gen_durable.placement_lock where one for update skip locked;
    if not found then
        return;
    end if;
    select w.* into watermark from gen_durable.placement_watermarks w order by w.n desc limit 1;
    seen := pg_current_snapshot();
    start := gen_durable._placement_start(watermark.placed_to, watermark.open_xids, watermark.open_since, seen);
    reached := gen_durable._place(start, p_limit);
    -- The watermark of placement moves down if an instance between the start of this placement and
    -- the watermark could not be placed.
    moves_to := least(watermark.drawn, reached);
    -- A placement of fewer than 100 arrival numbers writes no new watermark: to read these numbers
    -- again costs less than a new row each time.
    if start = watermark.placed_to and moves_to - watermark.placed_to < 100 and coalesce(drawn_to - watermark.drawn, 0) < 100 then
        return;
    end if;
    insert into gen_durable.placement_watermarks (placed_to, drawn, drawn_before, open_xids, open_since, sweep_due_at)
    select moves_to, coalesce(drawn_to, watermark.drawn), case when drawn_to is null then watermark.drawn_before else pg_current_xact_id() end,
        coalesce(array_agg(open.xid), '{}'), coalesce(array_agg(open.since), '{}'), watermark.sweep_due_at
    from (select old.xid, old.since from unnest(watermark.open_xids, watermark.open_since) as old(xid, since)
          where not pg_visible_in_snapshot(old.xid, seen)
          union all
          select new.xid, watermark.placed_to from pg_snapshot_xip(seen) as new(xid)
          where moves_to > watermark.placed_to and new.xid < watermark.drawn_before and new.xid <> all (watermark.open_xids)) open;
    delete from gen_durable.placement_watermarks w where w.n = watermark.n;
end $$;
