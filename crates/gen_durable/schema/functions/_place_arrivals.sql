-- Places instances that have entered a lane or wait for a partition key, if any has arrived since
-- the last placement. If it cannot exclude new arrivals cheaply (many arrival numbers were drawn),
-- it starts a placement, and only the picker that gets the placement lock reads the numbers.
-- Returns the arrival number up to which everything was placed before, or null if a transaction was
-- open that may have drawn a smaller number.
--   called by: _pick      index: placement_watermarks_pkey, instances_arrival_no; as _place_new
--   locks: as _place_new
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._place_arrivals() returns bigint
language plpgsql
as $$
declare
    placement record;
begin
    select w.placed_to, w.open_xids, w.open_since, (select a.last_value from gen_durable.arrival_numbers a) as drawn into placement
    from gen_durable.placement_watermarks w order by w.n desc limit 1;
    if placement.drawn - placement.placed_to >= 200
       or placement.open_xids <> '{}' and gen_durable._placement_start(
           placement.placed_to, placement.open_xids, placement.open_since, pg_current_snapshot()) < placement.placed_to
       or exists (select from gen_durable.instances i where i.arrival_no > placement.placed_to) then
        perform gen_durable._place_new(1000);
    end if;
    return case when placement.open_xids = '{}' then placement.placed_to end;
end $$;
