-- 0004: lanes and partition keys: who may run, and who is next.
--
-- An act that makes an instance wait in a lane or under a partition key takes no lock for it: it draws a number of arrival,
-- and whoever picks next gives out places and turns (`place`). The commit that frees a lane or a key hands it over itself
-- (`hand_over`). So a caller's transaction that stays open keeps nobody waiting.

-- Who is next under a partition key, of those that wait: the first that is due, by the order of the picker; if none is, the
-- one that will be first.
--   called by: deal, hand_over, repair      index: turns_pkey; instances_waiting, one probe for each priority      locks: nothing
create function gen_durable.next_turn(p_tenant text, p_key text) returns bigint
language plpgsql stable
as $$
declare
    found_one record;
    first_id bigint;
    first_at timestamptz := 'infinity';
    above int := -40000;
    floor_priority smallint;
    floor_at timestamptz;
    floor_id bigint;
begin
    select coalesce(min(t.priority), -32768), coalesce(min(t.at), '-infinity'), coalesce(min(t.id), 0)
    into floor_priority, floor_at, floor_id from gen_durable.turns t where t.tenant = p_tenant and t.key = p_key;
    loop
        select i.id, i.priority, i.eligible_at into found_one
        from gen_durable.instances i
        where i.tenant = p_tenant and i.partition_key = p_key and i.held_back and i.priority > above
          and (i.priority, i.eligible_at, i.id) >= (floor_priority, floor_at, floor_id)
        order by i.tenant, i.partition_key, i.priority, i.eligible_at, i.id
        limit 1;
        exit when found_one.id is null;
        if found_one.eligible_at <= gen_durable.clock() then
            return found_one.id;
        end if;
        if first_id is null or found_one.eligible_at < first_at then
            first_id := found_one.id;
            first_at := found_one.eligible_at;
        end if;
        above := found_one.priority;
    end loop;
    return first_id;
end $$;

-- See to it that somebody has the turn under a partition key, if anybody waits for it. False: somebody holds a row that
-- matters, so come again.
--   called by: place      index: instances_turn, instances_waiting
--   locks: the row whose turn it is and the row that gets it, skipping what somebody holds. The caller holds the placer.
create function gen_durable.deal(p_tenant text, p_key text, p_came bigint[]) returns boolean
language plpgsql
as $$
declare
    holder record;
    best bigint;
    best_at timestamptz;
begin
    select i.id, i.status, i.eligible_at into holder
    from gen_durable.instances i
    where i.tenant = p_tenant and i.partition_key = p_key and not i.held_back
      and (i.status in ('runnable', 'executing') or i.locked_by is not null);
    if holder.id is not null then
        -- Under its lock: an ending that is about to free the key would not see who came meanwhile, nor would we see it end.
        select i.id, i.status, i.eligible_at into holder
        from gen_durable.instances i
        where i.id = holder.id and not i.held_back and (i.status in ('runnable', 'executing') or i.locked_by is not null)
        for no key update skip locked;
        if holder.id is null then
            return false;
        end if;
    end if;
    -- Lower the cursor to the first arrival. That one may have been cancelled meanwhile: others that arrived with it wait behind it.
    with came as materialized (
        -- Of this key, by id alone: in the order of the key's index it would be all that wait.
        select i.tenant, i.partition_key, i.priority, i.eligible_at, i.id
        from gen_durable.instances i where i.id = any (p_came)
    )
    update gen_durable.turns t set priority = f.priority, at = f.eligible_at, id = f.id
    from (select c.priority, c.eligible_at, c.id from came c
          where c.tenant = p_tenant and c.partition_key = p_key
          order by c.priority, c.eligible_at, c.id limit 1) f
    where t.tenant = p_tenant and t.key = p_key and (t.priority, t.at, t.id) > (f.priority, f.eligible_at, f.id);
    if holder.id is not null then
        -- Also one that was cancelled: its step still runs.
        if holder.status <> 'runnable' or holder.eligible_at <= gen_durable.clock() then
            return true;
        end if;
    end if;
    best := gen_durable.next_turn(p_tenant, p_key);
    if best is null then
        return true;
    end if;
    select i.eligible_at into best_at
    from gen_durable.instances i where i.id = best and i.held_back
    for no key update skip locked;
    if best_at is null then
        return false;
    end if;
    if holder.id is not null then
        -- Whoever has the turn is not due yet. It makes way for one that is, or will be sooner.
        if best_at >= holder.eligible_at then
            return true;
        end if;
        update gen_durable.instances i set held_back = true where i.id = holder.id;
    end if;
    update gen_durable.instances i
    set held_back = false, eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
    where i.id = best;
    return true;
end $$;

-- The lanes that a worker leads, with who is at their head.
--   called by: store::lease::{reap, bury, retire, led}      index: lanes_led, instances_lane      locks: nothing
create function gen_durable.led_heads(p_worker uuid, p_tenant text, p_key text, p_limit int)
returns table (tenant text, key text, id bigint, status gen_durable.durable_status, claim_epoch bigint, step_seq bigint, locked_by uuid)
language plpgsql stable
set search_path = gen_durable, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select l.tenant, l.key, head.id, head.status, head.claim_epoch, head.step_seq, head.locked_by
    from (select * from gen_durable.lanes l
          where l.led_by = p_worker and (l.tenant, l.key) > (p_tenant, p_key)
          order by l.tenant, l.key
          limit p_limit) l
    left join lateral (
        select i.* from gen_durable.instances i
        where i.lane_hash = gen_durable.lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
          and i.tenant = l.tenant and i.lane_key = l.key
        order by i.lane_hash, i.lane_position
        limit 1
    ) head on true;
end $$;

-- Returns the worker that runs a queued instance as the head of a lane that it leads; null if no worker runs it.
--   called by: _cancel_live      index: instances_pkey, lanes_pkey, instances_lane      locks: nothing
create function gen_durable._lane_worker(p_id bigint) returns uuid
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
as $$
declare
    found_lane record;
begin
    -- In two steps: most lanes are led by no worker, or have another head.
    select l.tenant, l.key, l.floor, l.led_by into found_lane
    from gen_durable.instances i
    join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
    where i.id = p_id;
    return case when found_lane.led_by is not null and p_id = (
        select h.id from gen_durable.instances h
        where h.lane_hash = gen_durable.lane_hash(found_lane.tenant, found_lane.key) and h.in_lane
          and h.lane_position > found_lane.floor and h.tenant = found_lane.tenant and h.lane_key = found_lane.key
        order by h.lane_hash, h.lane_position
        limit 1) then found_lane.led_by end;
end $$;

-- The lanes that these have left from outside are led by nobody: who is next there runs nowhere.
--   called by: _cancel_live, _release, hand_over, store::lane::{skip, discard}      index: instances_pkey, lanes_pkey
--   locks: the lanes, in order; who calls this waits for no instance after that
create function gen_durable.unlead(p_ids bigint[]) returns void
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
as $$
begin
    with led as materialized (
        select l.tenant, l.key from gen_durable.instances i
        join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
        -- A plain `is not null` would let a plan that was made while nobody led a lane walk through all that are led.
        where i.id = any (p_ids) and coalesce(l.led_by, '00000000-0000-0000-0000-000000000000') <> '00000000-0000-0000-0000-000000000000'
        order by l.tenant, l.key
        for update of l
    )
    update gen_durable.lanes l set led_by = null
    from led
    where l.tenant = led.tenant and l.key = led.key;
end $$;

-- Look at what arrived: give places in lanes, in the order of arrival; make sure that each of these lanes has somebody at
-- its head and each of these partition keys somebody whose turn it is.
--   called by: _place_new, enqueue_all at once, repair      index: instances_arrivals, instances_lane, instances_pkey, lanes_pkey
--   locks: the placer, so that there is one at a time; then arrivals, lanes and heads, skipping what somebody holds: it
--   waits for nobody. What is passed over keeps its number and is looked at again.
-- Answers up to which arrival everything was seen to, or null if there is no end to it.
create function gen_durable.place(p_from bigint, p_limit int) returns bigint
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
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
    -- Lanes that get no places now: somebody holds them, or an arrival in them.
    shut_tenants text[] := '{}';
    shut_keys text[] := '{}';
    -- Those that are locked here.
    lane_tenants text[] := '{}';
    lane_keys text[] := '{}';
    lane_floors bigint[] := '{}';
    lane_is_led boolean[] := '{}';
    got_tenants text[];
    got_keys text[];
    got_floors bigint[];
    got_is_led boolean[];
    round bigint;
    heads bigint[];
    released bigint[] := '{}';
    dealt record;
    again bigint[];
begin
    perform from gen_durable.placer where one for update skip locked;
    if not found then
        return p_from;
    end if;
    -- Once, as a rule. What had to be passed over must not keep those behind it: then also what comes after, a few times.
    for pass in 1..5 loop
        select array_agg(a.id order by a.arrival), case when count(*) = p_limit then max(a.arrival) end into seen, reached
        from (select i.id, i.arrival from gen_durable.instances i
              where i.arrival > looked_to and not exists (
                  select from unnest(shut_tenants, shut_keys) as shut(tenant, key) where shut.tenant = i.tenant and shut.key = i.lane_key)
              order by i.arrival limit p_limit) a;
        exit when seen is null;
        -- By id: a plain `is not null` would lead the planner to the index of arrivals, and through all that ever came.
        taken := array(select i.id from gen_durable.instances i
                       where i.id = any (seen) and coalesce(i.arrival, 0) > 0 order by i.id for no key update skip locked);
        select array_agg(l.tenant order by l.tenant, l.lane_key), array_agg(l.lane_key order by l.tenant, l.lane_key)
        into wanted_tenants, wanted_keys
        from (select distinct i.tenant, i.lane_key from gen_durable.instances i where i.id = any (taken) and i.lane_key is not null) l;
        if wanted_keys is not null then
            -- Only what is not there: a conflict with a row that somebody is writing would wait for him.
            insert into gen_durable.lanes (tenant, key)
            select * from unnest(wanted_tenants, wanted_keys) as k(tenant, key)
            where not exists (select from gen_durable.lanes l where l.tenant = k.tenant and l.key = k.key)
            on conflict do nothing;
            -- The lock of the lane: an ending that frees it, and we, must see one another.
            select array_agg(l.tenant), array_agg(l.key), array_agg(l.floor), array_agg(l.led_by is not null)
            into got_tenants, got_keys, got_floors, got_is_led
            from (select l.* from unnest(wanted_tenants, wanted_keys) as k(tenant, key)
                  join gen_durable.lanes l on l.tenant = k.tenant and l.key = k.key
                  order by l.tenant, l.key
                  for update of l skip locked) l;
            lane_tenants := lane_tenants || got_tenants;
            lane_keys := lane_keys || got_keys;
            lane_floors := lane_floors || got_floors;
            lane_is_led := lane_is_led || got_is_led;
        end if;
        left_out := '{}';
        if cardinality(taken) < cardinality(seen) or wanted_keys is not null and cardinality(wanted_keys) > coalesce(cardinality(got_keys), 0) then
            left_out := array(select unnest(seen) except select unnest(taken));
            -- One that has an arrival which somebody holds gets no places: what came later must not get there first.
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

    -- Lanes. Also one that gets no places now has somebody at its head.
    if lane_keys <> '{}' then
        round := nextval('gen_durable.rounds') << 20;
        update gen_durable.instances i
        set arrival = null,
            in_lane = i.in_lane or i.status = 'queued',
            lane_position = case when i.status = 'queued' and not i.in_lane then round + n.place else i.lane_position end
        from (select i.id, row_number() over (order by i.arrival) as place
              from gen_durable.instances i where i.id = any (mine) and i.lane_key is not null) n
        where i.id = n.id;

        heads := array(
            select head.id
            from unnest(lane_tenants, lane_keys, lane_floors, lane_is_led) as l(tenant, key, floor, is_led)
            cross join lateral (
                select i.id, i.status from gen_durable.instances i
                where i.lane_hash = gen_durable.lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
                  and i.tenant = l.tenant and i.lane_key = l.key
                order by i.lane_hash, i.lane_position
                limit 1
            ) head
            -- In a lane that is led, it runs there.
            where head.status = 'queued' and not l.is_led);
        released := array(select i.id from gen_durable.instances i where i.id = any (heads) and i.status = 'queued'
                          order by i.id for no key update skip locked);
        -- A worker that led the lane and was thought dead may still run it: it shall not end it.
        update gen_durable.instances i
        set status = 'runnable', claim_epoch = i.claim_epoch + 1, held_back = i.partition_key is not null,
            eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
        where i.id = any (released);
        if cardinality(released) < cardinality(heads) then
            again := array(
                select max(i.id) from gen_durable.instances i
                join gen_durable.instances h on h.tenant = i.tenant and h.lane_key = i.lane_key
                where i.id = any (mine) and h.id = any (heads) and h.id <> all (released)
                group by i.tenant, i.lane_key);
        end if;
    end if;

    -- Partition keys.
    for dealt in
        select i.tenant, i.partition_key as key, array_agg(i.id order by i.held_back desc, i.priority, i.eligible_at, i.id) as ids
        from gen_durable.instances i
        where i.id = any (mine || released) and i.partition_key is not null
        group by i.tenant, i.partition_key
        order by i.tenant, i.partition_key
    loop
        if not gen_durable.deal(dealt.tenant, dealt.key, dealt.ids) then
            -- The first of them leads the next placement to all: it lowers the cursor of the key to that one's position.
            again := again || dealt.ids[1];
        end if;
    end loop;
    update gen_durable.instances i set arrival = null
    where i.id = any (mine) and i.lane_key is null;

    -- What could not be done now keeps a number, and is looked at again.
    if cardinality(again) > 0 then
        update gen_durable.instances i set arrival = nextval('gen_durable.arrivals') where i.id = any (again);
    end if;
    first_left := (select min(i.arrival + 0) from gen_durable.instances i where i.id = any (passed_over));
    return least(reached, first_left - 1);
end $$;

-- The lanes of these entries, locked: is somebody in them? One that somebody holds is not among them: whoever gives out places waits for
-- nobody, and a caller's transaction that cancelled a head may hold its lane for long.
--   called by: enqueue_all, at once      index: lanes_pkey, instances_lane      locks: the lanes, in order, skipping what somebody holds
create function gen_durable.enter_lanes(p_entries jsonb) returns table (tenant text, key text, taken boolean)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    tenants text[];
    keys text[];
begin
    select array_agg(l.tenant order by l.tenant, l.key), array_agg(l.key order by l.tenant, l.key) into tenants, keys
    from (select distinct coalesce(e->>'tenant', '') as tenant, e->>'lane' as key
          from jsonb_array_elements(p_entries) e where e ? 'lane') l;
    insert into gen_durable.lanes (tenant, key)
    select * from unnest(tenants, keys) as k(tenant, key)
    where not exists (select from gen_durable.lanes l where l.tenant = k.tenant and l.key = k.key)
    on conflict do nothing;
    select array_agg(l.tenant), array_agg(l.key) into tenants, keys
    from (select l.tenant, l.key from unnest(tenants, keys) as k(tenant, key)
          join gen_durable.lanes l on l.tenant = k.tenant and l.key = k.key
          order by l.tenant, l.key
          for update of l skip locked) l;
    -- From the end of the lane, down to its floor.
    return query
    select l.tenant, l.key, exists (
        select from gen_durable.instances i
        where i.lane_hash = gen_durable.lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
          and i.tenant = l.tenant and i.lane_key = l.key)
    from unnest(tenants, keys) as k(tenant, key)
    join gen_durable.lanes l on l.tenant = k.tenant and l.key = k.key;
end $$;

-- Look after lanes and partition keys, a part of them at a time: one that has somebody waiting and nobody at its head gets
-- a number, so that `place` sees to it; a lane that is empty is forgotten.
--   called by: store::lane::repair      index: placement_watermarks_pkey, lanes_pkey, instances_lane, instances_waiting, instances_turn
--   locks: the placer; lanes, skipping what somebody holds; as place
-- Answers where to go on (null: from the beginning), and how many were found without a head.
create function gen_durable.repair(p_lane_tenant text, p_lane_key text, p_tenant text, p_key text, p_limit int)
returns table (lane_tenant text, lane_key text, tenant text, key text, repaired int)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    lane record;
    head record;
    waiting record;
    looked int := 0;
    next_lane_tenant text;
    next_lane_key text;
    next_tenant text := p_tenant;
    next_key text := p_key;
    found_headless int := 0;
    swept bigint;
begin
    perform from gen_durable.placer where one for update skip locked;
    if not found then
        return;
    end if;
    -- What is only late is not lost. Every 30 s one worker begins at the first number, whatever the watermark says. A watermark above the
    -- sequence, which was set back, comes down.
    select case when w.sweep_due_at <= statement_timestamp() then w.n end into swept
    from gen_durable.placement_watermarks w order by w.n desc limit 1;
    if not found then
        insert into gen_durable.placement_watermarks default values;
    end if;
    if swept is null then
        perform gen_durable._place_new(1000);
    else
        perform gen_durable.place(0, 1000);
        update gen_durable.placement_watermarks w
        set sweep_due_at = statement_timestamp() + interval '30 s',
            placed_to = least(w.placed_to, (select a.last_value from gen_durable.arrivals a)),
            drawn = least(w.drawn, (select a.last_value from gen_durable.arrivals a))
        where w.n = swept;
    end if;
    for lane in
        select l.tenant, l.key, l.floor, l.led_by from gen_durable.lanes l
        where (l.tenant, l.key) > (p_lane_tenant, p_lane_key)
        order by l.tenant, l.key
        limit p_limit
        for update skip locked
    loop
        looked := looked + 1;
        next_lane_tenant := lane.tenant;
        next_lane_key := lane.key;
        select i.id, i.status into head from gen_durable.instances i
        where i.lane_hash = gen_durable.lane_hash(lane.tenant, lane.key) and i.in_lane and i.lane_position > lane.floor
          and i.tenant = lane.tenant and i.lane_key = lane.key
        order by i.lane_hash, i.lane_position
        limit 1;
        if head.id is null then
            delete from gen_durable.lanes l where l.tenant = lane.tenant and l.key = lane.key;
        elsif head.status = 'queued' and not exists (select from gen_durable.workers w where w.id = lane.led_by) then
            update gen_durable.lanes l set led_by = null where l.tenant = lane.tenant and l.key = lane.key;
            update gen_durable.instances i set arrival = nextval('gen_durable.arrivals')
            where i.id = (select h.id from gen_durable.instances h where h.id = head.id and h.arrival is null
                          for no key update skip locked);
            found_headless := found_headless + found::int;
        end if;
    end loop;
    if looked < p_limit then
        next_lane_tenant := null;
        next_lane_key := null;
    end if;

    looked := 0;
    loop
        select i.tenant, i.partition_key as key into waiting from gen_durable.instances i
        where i.held_back and (i.tenant, i.partition_key) > (next_tenant, next_key)
        order by i.tenant, i.partition_key
        limit 1;
        next_tenant := waiting.tenant;
        next_key := waiting.key;
        exit when next_key is null;
        if not exists (select from gen_durable.instances i
                       where i.tenant = next_tenant and i.partition_key = next_key and not i.held_back
                         and (i.status in ('runnable', 'executing') or i.locked_by is not null)) then
            delete from gen_durable.turns t where t.tenant = next_tenant and t.key = next_key;
            update gen_durable.instances i set arrival = nextval('gen_durable.arrivals')
            where i.id = (select h.id from gen_durable.instances h
                          where h.id = gen_durable.next_turn(next_tenant, next_key) and h.arrival is null
                          for no key update skip locked);
            found_headless := found_headless + found::int;
        end if;
        looked := looked + 1;
        exit when looked >= p_limit;
    end loop;
    if found_headless > 0 then
        perform gen_durable._place_new(1000);
    end if;
    return query select next_lane_tenant, next_lane_key, next_tenant, next_key, found_headless;
end $$;
