-- Returns the arrival number after which the next placement begins: the watermark, or a smaller
-- number if a transaction has ended that was open when the watermark rose above its numbers.
--   called by: _place_arrivals, _place_new, _lanes_at_once      index: none      locks: nothing
create function gen_durable._placement_start(p_placed_to bigint, p_open_xids xid8[], p_open_since bigint[], p_seen pg_snapshot)
returns bigint
    language sql immutable
    as $$
        select least(p_placed_to, min(open.since)) from unnest(p_open_xids, p_open_since) as open(xid, since)
        where pg_visible_in_snapshot(open.xid, p_seen)
    $$;
