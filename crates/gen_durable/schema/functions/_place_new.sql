-- Places the instances that drew an arrival number after the last placement, and moves the
-- watermark.
--   called by: _place_arrivals, _set_aside_refused, repair
--   index: placement_watermarks_pkey; as place
--   locks: the placement lock, and does nothing if it is held; as place
-- A transaction may draw a number long before it commits. The watermark passes such a number, and
-- records the transactions that were open then: when one of them has ended, the next placement
-- reads all numbers since that transaction began, once. So a transaction that stays open costs a
-- pick nothing, although the index keeps an entry for every number that was drawn and placed since
-- it began. No instance is missed:
--   1. A placement reads how far numbers are drawn, and gets its transaction id after that. A
--   transaction has its id before it draws a number. So every transaction that drew a number up to
--   there has a smaller id.
--   2. The next placement that moves the watermark has a newer snapshot. In it each of those
--   transactions has ended, and its rows are visible and placed; or it is listed as open. The end
--   of that snapshot is above the first placement's id, since that placement has ended.
-- Its callers pin the plans.
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
    -- Moves down if an instance between the start and the watermark could not be placed.
    moves_to := least(watermark.drawn, reached);
    -- A watermark that lags by a few numbers costs less than a row for each of them.
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
