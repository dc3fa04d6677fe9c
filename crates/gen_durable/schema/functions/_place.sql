-- Places instances that have drawn an arrival number above p_from: assigns lane positions in the
-- order of arrival, and ensures that each lane of these instances has a head that may run and that
-- each of their partitions has a holder.
--   called by: _place_new, _lanes_at_once, _repair, place.sql
--   index: instances_arrival_no, instances_pkey; as its parts
--   locks: the placement lock (the row of `placement_lock`), so that one transaction places at a
--   time; then the arrived instances, lanes and heads, skipping locked rows: it waits for no lock.
--   A skipped instance keeps its arrival number, and the next placement reads it again. Returns the
--   number up to which every instance is placed; null if all are placed.
create function gen_durable._place(p_from bigint, p_limit int) returns bigint
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    looked_to bigint := p_from;
    reached bigint;
    seen bigint[];
    taken bigint[];
    left_out bigint[];
    mine bigint[] := '{}';
    passed_over bigint[] := '{}';
    first_left bigint;
    wanted_tenants text[];
    wanted_keys text[];
    -- Lanes in which this placement assigns no positions: another transaction has locked the lane,
    -- or an instance that arrived in the lane.
    shut_tenants text[] := '{}';
    shut_keys text[] := '{}';
    -- Lanes that this placement has locked.
    lane_tenants text[] := '{}';
    lane_keys text[] := '{}';
    lane_floors bigint[] := '{}';
    got_tenants text[];
    got_keys text[];
    got_floors bigint[];
    released bigint[] := '{}';
    again bigint[];
begin
    perform from gen_durable.placement_lock where one for update skip locked;
    if not found then
        return p_from;
    end if;
    -- Placement usually needs one page. It reads up to five pages if it skips instances, so that
    -- skipped instances do not delay the instances that arrived after them.
    for pass in 1..5 loop
        select array_agg(a.id order by a.arrival_no), case when count(*) = p_limit then max(a.arrival_no) end into seen, reached
        from (select i.id, i.arrival_no from gen_durable.instances i
              where i.arrival_no > looked_to and not exists (
                  select from unnest(shut_tenants, shut_keys) as shut(tenant, key) where shut.tenant = i.tenant and shut.key = i.lane_key)
              order by i.arrival_no limit p_limit) a;
        exit when seen is null;
        -- Reads the arrived instances by id: a plain `arrival_no is not null` would allow this
        -- statement a scan of the index of all arrival numbers.
        taken := array(select i.id from gen_durable.instances i
                       where i.id = any (seen) and coalesce(i.arrival_no, 0) > 0 order by i.id for no key update skip locked);
        select array_agg(l.tenant order by l.tenant, l.lane_key), array_agg(l.lane_key order by l.tenant, l.lane_key)
        into wanted_tenants, wanted_keys
        from (select distinct i.tenant, i.lane_key from gen_durable.instances i where i.id = any (taken) and i.lane_key is not null) l;
        if wanted_keys is not null then
            select array_agg(l.tenant), array_agg(l.key), array_agg(l.floor)
            into got_tenants, got_keys, got_floors
            from gen_durable._lock_lanes(wanted_tenants, wanted_keys) l;
            lane_tenants := lane_tenants || got_tenants;
            lane_keys := lane_keys || got_keys;
            lane_floors := lane_floors || got_floors;
        end if;
        left_out := '{}';
        if cardinality(taken) < cardinality(seen) or wanted_keys is not null and cardinality(wanted_keys) > coalesce(cardinality(got_keys), 0) then
            left_out := array(select unnest(seen) except select unnest(taken));
            -- Placement assigns no positions in a lane in which another transaction has locked an
            -- arrived instance: a later instance must not get a position before that instance.
            select shut_tenants || coalesce(array_agg(l.tenant), '{}'), shut_keys || coalesce(array_agg(l.lane_key), '{}') into shut_tenants, shut_keys
            from (select i.tenant, i.lane_key from gen_durable.instances i where i.id = any (left_out) and i.lane_key is not null
                  union
                  select k.* from unnest(wanted_tenants, wanted_keys) as k(tenant, key)
                  where not exists (select from unnest(got_tenants, got_keys) as g(tenant, key) where g.tenant = k.tenant and g.key = k.key)
                 ) l;
            left_out := left_out || array(
                select i.id from gen_durable.instances i
                where i.id = any (taken) and exists (
                    select from unnest(shut_tenants, shut_keys) as shut(tenant, key) where shut.tenant = i.tenant and shut.key = i.lane_key));
            taken := array(select unnest(taken) except select unnest(left_out));
        end if;
        mine := mine || taken;
        passed_over := passed_over || left_out;
        exit when reached is null or left_out = '{}';
        looked_to := reached;
    end loop;
    if mine = '{}' and passed_over = '{}' then
        return null;
    end if;

    -- Assigns lane positions and makes heads of lanes runnable. A lane that this transaction has
    -- locked needs a head even if no position is assigned in it.
    if lane_keys <> '{}' then
        select p.released, p.again into released, again
        from gen_durable._place_in_lanes(mine, lane_tenants, lane_keys, lane_floors) p;
    end if;
    again := again || gen_durable._choose_partition_holders(mine || released);
    update gen_durable.instances i set arrival_no = null
    where i.id = any (mine) and i.lane_key is null;

    -- Draws a new arrival number for each lane without a head and each partition without a holder,
    -- if a row of it was locked, so that the next placement reads the lane or partition again.
    if cardinality(again) > 0 then
        update gen_durable.instances i set arrival_no = nextval('gen_durable.arrival_numbers') where i.id = any (again);
    end if;
    first_left := (select min(i.arrival_no + 0) from gen_durable.instances i where i.id = any (passed_over));
    return least(reached, first_left - 1);
end $$;
