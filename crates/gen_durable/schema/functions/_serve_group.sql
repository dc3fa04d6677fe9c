-- Chooses instances of one group and queue that wait for their limits and may begin now, takes
-- their tokens, and returns their ids. Writes when a pick tries the group again, or deletes the row
-- of the group if no other instance of it waits.
--   called by: _pick_limited
--   index: instances_limit_waiting, limit_backlog_pkey, limit_tokens_pkey; as _limit_room and
--   _admit
--   locks: the row of the group and the chosen instances, FOR NO KEY UPDATE SKIP LOCKED. The caller
--   holds the locks of the limits.
-- A group that waits for tokens is tried again when there are enough of them, and at least once a
-- minute. A group that waits for the end of a claim is tried again by the worker that ends one
-- (p_freed of `_pick`), and after p_retry, in case that worker has crashed.
create function gen_durable._serve_group(p_group text, p_queue text, p_room int, p_known text[], p_retry interval) returns bigint[]
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    names text[];
    keys text[];
    room record;
    ids bigint[] := '{}';
    weights float8[];
    chosen bigint[] := '{}';
    wait float8;
    next_at timestamptz := gen_durable.clock();
    held text;
begin
    perform from gen_durable.limit_backlog b where b.limit_group = p_group and b.queue = p_queue for no key update skip locked;
    if not found then
        return '{}';
    end if;
    select array_agg(s.name), array_agg(s.key) into names, keys
    from (select p.name, p.key from gen_durable._limit_pairs(p_group) p
          union select p.name, '' from gen_durable._limit_pairs(p_group) p) s;
    -- A clock that was set back must not stop a rate until the clock has caught up. A pick that
    -- began a little before another one and got the lock after it must not set the time back: the
    -- tokens of the time between would be added twice.
    update gen_durable.limit_tokens t set at = gen_durable.clock()
    from unnest(names, keys) as s(name, key)
    where t.name = s.name and t.key = s.key and t.at > gen_durable.clock() + interval '5 seconds';
    select min(r.free) as free, max(r.next_at) filter (where r.next_at > gen_durable.clock()) as opens_at,
        (array_agg(case when r.key = '' then r.name else r.name || chr(1) || r.key end order by r.free, r.key))[1] as scope
    into room from gen_durable._limit_room(names, keys, p_needed => p_room) r;
    if room.free > 0 then
        select coalesce(array_agg(w.id order by w.nth), '{}'), array_agg(w.weight order by w.nth) into ids, weights
        from (select i.id, coalesce(i.limit_weight, 1)::float8 as weight, row_number() over () as nth
              from (select i.id, i.limit_weight
                    from gen_durable.instances i
                    where i.status = 'awaiting_limit' and i.limit_group = p_group and i.queue = p_queue
                      and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
                    order by i.limit_group, i.queue, i.priority, i.eligible_at, i.id
                    limit least(room.free, p_room)
                    for no key update skip locked) i) w;
        if ids <> '{}' then
            chosen := gen_durable._admit(ids, array_fill(p_group, array[cardinality(ids)]), weights, false);
        end if;
    end if;
    if not exists (select from gen_durable.instances i
                   where i.status = 'awaiting_limit' and i.limit_group = p_group and i.queue = p_queue and i.id <> all (chosen)) then
        delete from gen_durable.limit_backlog b where b.limit_group = p_group and b.queue = p_queue;
        return chosen;
    end if;
    if room.opens_at is not null then
        -- A paused limit wakes its groups when it is resumed.
        next_at := least(room.opens_at, gen_durable.clock() + interval '1 minute');
    elsif cardinality(chosen) < cardinality(ids) then
        -- The tokens do not suffice for the next instance.
        select max((least(weights[cardinality(chosen) + 1], r.burst) - r.tokens) / r.per_second) into wait
        from gen_durable._limit_room(names, keys) r where r.per_second is not null;
        next_at := gen_durable.clock() + make_interval(secs => least(60, greatest(0, coalesce(wait, 0))));
    elsif cardinality(chosen) >= room.free then
        held := room.scope;
        next_at := gen_durable.clock() + p_retry;
    elsif cardinality(ids) < p_room then
        -- Another transaction has locked the others, or this worker does not know their step.
        next_at := gen_durable.clock() + p_retry;
    end if;
    update gen_durable.limit_backlog b set ready_at = next_at, held_on = held
    where b.limit_group = p_group and b.queue = p_queue;
    return chosen;
end $$;
