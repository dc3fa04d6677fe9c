-- Checks a page of lanes after (p_tenant, p_key). Deletes lanes without instances. If the head of a
-- lane is queued and no placement is pending for it, the head draws an arrival number, so that
-- `_place` makes it runnable.
--   called by: _repair      index: lanes_pkey, instances_lane
--   locks: the lanes in (tenant, key), and heads, skipping locked rows
-- Returns the last lane of the page (null if the page was the last), and how many lanes were
-- repaired. It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._repair_lanes(
    p_tenant text, p_key text, p_limit int, out next_tenant text, out next_key text, out repaired int
)
language plpgsql
as $$
declare
    lane record;
    head record;
    looked int := 0;
begin
    repaired := 0;
    for lane in
        select l.tenant, l.key, l.floor from gen_durable.lanes l
        where (l.tenant, l.key) > (p_tenant, p_key)
        order by l.tenant, l.key
        limit p_limit
        for update skip locked
    loop
        looked := looked + 1;
        next_tenant := lane.tenant;
        next_key := lane.key;
        select i.id, i.status into head from gen_durable.instances i
        where i.lane_hash = gen_durable._lane_hash(lane.tenant, lane.key) and i.in_lane and i.lane_position > lane.floor
          and i.tenant = lane.tenant and i.lane_key = lane.key
        order by i.lane_hash, i.lane_position
        limit 1;
        if head.id is null then
            delete from gen_durable.lanes l where l.tenant = lane.tenant and l.key = lane.key;
        elsif head.status = 'queued' then
            update gen_durable.instances i set arrival_no = nextval('gen_durable.arrival_numbers')
            where i.id = (select h.id from gen_durable.instances h where h.id = head.id and h.arrival_no is null
                          for no key update skip locked);
            repaired := repaired + found::int;
        end if;
    end loop;
    if looked < p_limit then
        next_tenant := null;
        next_key := null;
    end if;
end $$;
