-- Repairs lanes and partitions that have waiting instances but no head or holder that can run, one
-- page of lanes and one page of partitions per call.
--   called by: store::lane::repair      index: placement_watermarks_pkey; as its parts
--   locks: the placement lock; then as _place and its parts
-- Returns where the next call continues (null: at the beginning), and how many lanes and partitions
-- were repaired. Returns no row if another transaction holds the placement lock.
create function gen_durable._repair(p_lane_tenant text, p_lane_key text, p_tenant text, p_key text, p_limit int)
returns table (lane_tenant text, lane_key text, tenant text, key text, repaired int)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    lanes record;
    partitions record;
    swept bigint;
begin
    perform from gen_durable.placement_lock where one for update skip locked;
    if not found then
        return;
    end if;
    -- First runs a placement for instances that have arrived. Every 30 s one worker begins this
    -- placement at the first arrival number, whatever the watermark says. A placement from the
    -- first number lowers a watermark that is above the sequence of arrival numbers, if the
    -- sequence was set back.
    select case when w.sweep_due_at <= statement_timestamp() then w.n end into swept
    from gen_durable.placement_watermarks w order by w.n desc limit 1;
    if not found then
        insert into gen_durable.placement_watermarks default values;
    end if;
    if swept is null then
        perform gen_durable._place_new(1000);
    else
        perform gen_durable._place(0, 1000);
        update gen_durable.placement_watermarks w
        set sweep_due_at = statement_timestamp() + interval '30 s',
            placed_to = least(w.placed_to, (select a.last_value from gen_durable.arrival_numbers a)),
            drawn = least(w.drawn, (select a.last_value from gen_durable.arrival_numbers a))
        where w.n = swept;
    end if;
    select * into lanes from gen_durable._repair_lanes(p_lane_tenant, p_lane_key, p_limit);
    select * into partitions from gen_durable._repair_partitions(p_tenant, p_key, p_limit);
    if lanes.repaired + partitions.repaired > 0 then
        perform gen_durable._place_new(1000);
    end if;
    return query select lanes.next_tenant, lanes.next_key, partitions.next_tenant, partitions.next_key,
        lanes.repaired + partitions.repaired;
end $$;
