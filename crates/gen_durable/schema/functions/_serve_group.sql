-- Chooses instances of one group and queue that wait for their limits and may begin now, takes
-- their tokens, and returns their ids. Writes when a pick tries the group again, or deletes the row
-- of the group if no other instance of it waits.
--   called by: _pick_limited
--   index: instances_limit_waiting, limit_backlog_pkey, limit_tokens_pkey; as _limit_room and _admit
--   locks: the chosen instances, FOR NO KEY UPDATE SKIP LOCKED; the row of the group. The caller
--   holds the locks of the limits.
-- A group that waits for tokens is tried again when there are enough of them. A group that waits for
-- the end of a claim is tried again by the worker that ends one (p_freed of `_pick`), and every
-- 100 ms, in case that worker has crashed.
create function gen_durable._serve_group(p_group text, p_queue text, p_room int, p_known text[]) returns bigint[]
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    names text[];
    keys text[];
    free int;
    opens_at timestamptz;
    ids bigint[] := '{}';
    weights float8[];
    found_count int;
    chosen bigint[] := '{}';
    wait float8;
    next_at timestamptz := gen_durable.clock();
    is_held boolean := false;
begin
    select array_agg(s.name), array_agg(s.key) into names, keys
    from (select p.name, p.key from gen_durable._limit_pairs(p_group) p
          union select p.name, '' from gen_durable._limit_pairs(p_group) p) s;
    -- A clock that was set back must not stop a rate until the clock has caught up.
    update gen_durable.limit_tokens t set at = gen_durable.clock()
    from unnest(names, keys) as s(name, key)
    where t.name = s.name and t.key = s.key and t.at > gen_durable.clock();
    select min(r.free), max(r.next_at) into free, opens_at from gen_durable._limit_room(names, keys) r;
    if free > 0 then
        select coalesce(array_agg(w.id order by w.nth), '{}'), array_agg(w.weight order by w.nth) into ids, weights
        from (select i.id, coalesce(i.limit_weight, 1)::float8 as weight, row_number() over () as nth
              from (select i.id, i.limit_weight
                    from gen_durable.instances i
                    where i.status = 'awaiting_limit' and i.limit_group = p_group and i.queue = p_queue
                      and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
                    order by i.limit_group, i.queue, i.priority, i.eligible_at, i.id
                    limit least(free, p_room)
                    for no key update skip locked) i) w;
        found_count := cardinality(ids);
        if found_count > 0 then
            chosen := gen_durable._admit(ids, array_fill(p_group, array[found_count]), weights, false);
        end if;
    end if;
    if not exists (select from gen_durable.instances i
                   where i.status = 'awaiting_limit' and i.limit_group = p_group and i.queue = p_queue and i.id <> all (chosen)) then
        delete from gen_durable.limit_backlog b where b.limit_group = p_group and b.queue = p_queue;
        return chosen;
    end if;
    if free = 0 then
        is_held := opens_at is null or opens_at <= gen_durable.clock();
        -- A paused limit wakes its groups when it is resumed.
        next_at := case when is_held then gen_durable.clock() + interval '100 ms'
                        else least(opens_at, gen_durable.clock() + interval '1 minute') end;
    elsif cardinality(chosen) < found_count then
        -- The tokens do not suffice for the next instance.
        select max((least(weights[cardinality(chosen) + 1], r.burst) - r.tokens) / r.per_second) into wait
        from gen_durable._limit_room(names, keys) r where r.per_second is not null;
        next_at := gen_durable.clock() + make_interval(secs => greatest(0, coalesce(wait, 0)));
    elsif found_count < least(free, p_room) then
        -- Another transaction has locked the others, or this worker does not know their step.
        next_at := gen_durable.clock() + interval '100 ms';
    elsif free <= p_room then
        is_held := true;
        next_at := gen_durable.clock() + interval '100 ms';
    end if;
    update gen_durable.limit_backlog b set ready_at = next_at, held = is_held
    where b.limit_group = p_group and b.queue = p_queue;
    return chosen;
end $$;
