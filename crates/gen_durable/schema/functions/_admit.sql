-- Decides which of these instances may begin now, in their order, and takes the tokens of those.
-- The instances are candidates of a pick that has locked their rows and their limits. An instance
-- takes all of its limits or none. With p_waits_behind it waits behind the instances of its group
-- that wait already. Returns the ids of the admitted instances; the caller claims them before it
-- ends.
--   called by: _choose_candidates, _pick_limited, _serve_group
--   index: limit_backlog_pkey, limit_tokens_pkey, limit_locks_pkey; as _limit_room and _hold
--   locks: the rows of limit_tokens. The caller holds the locks of the limits.
-- Its large statement reads no table, so hash joins are safe in it: the candidates of a pick may
-- have hundreds of keys.
-- An instance with several limits may find one free and another one taken. Such an instance counts
-- in the free one only if all of its limits had room before this call, so one limit that is full
-- does not keep the others from being used.
create function gen_durable._admit(p_ids bigint[], p_groups text[], p_weights float8[], p_waits_behind boolean) returns bigint[]
language plpgsql
as $$
-- planner: pinned, hash joins
declare
    behind text[] := case when p_waits_behind
        then array(select distinct b.limit_group from gen_durable.limit_backlog b where b.limit_group = any (p_groups)) else '{}' end;
    admitted bigint[];
begin
    with candidate as materialized (
        select c.id, c.limit_group, c.weight, c.nth
        from unnest(p_ids, p_groups, p_weights) with ordinality as c(id, limit_group, weight, nth)
    ), member as materialized (
        select g.limit_group, p.name, p.key, g.limit_group = any (behind) as is_behind
        from (select distinct c.limit_group from candidate c) g
        cross join lateral gen_durable._limit_pairs(g.limit_group) p
    ), scope as materialized (
        select r.*
        from (select array_agg(s.name) as names, array_agg(s.key) as keys
              from (select m.name, m.key from member m union select m.name, '' from member m) s) a
        cross join lateral gen_durable._limit_room(a.names, a.keys, p_needed => cardinality(p_ids)) r
    ), pair as (
        select c.id, c.nth, c.weight, m.name, m.key,
            not m.is_behind and whole.free > 0 and own.free > 0 as has_room,
            whole.free as whole_free, whole.tokens as whole_tokens, whole.burst as whole_burst,
            own.free as own_free, own.tokens as own_tokens, own.burst as own_burst
        from candidate c
        join member m on m.limit_group = c.limit_group
        join scope whole on whole.name = m.name and whole.key = ''
        join scope own on own.name = m.name and own.key = m.key
    ), possible as (
        select p.*, bool_and(p.has_room) over (partition by p.id) as is_possible from pair p
    ), by_key as (
        select p.*,
            count(*) filter (where p.is_possible) over same_key as key_count,
            sum(p.weight) filter (where p.is_possible) over same_key as key_weight
        from possible p
        window same_key as (partition by p.name, p.key order by p.nth)
    ), fitting as (
        -- An instance that weighs more than the burst begins if the bucket is full, and leaves a
        -- debt.
        select k.*, bool_and(k.is_possible and k.key_count <= k.own_free
                and k.key_weight - k.weight + least(k.weight, k.own_burst) <= k.own_tokens) over (partition by k.id) as fits
        from by_key k
    ), in_whole as (
        select f.*,
            count(*) filter (where f.fits) over same_limit as whole_count,
            sum(f.weight) filter (where f.fits) over same_limit as whole_weight
        from fitting f
        window same_limit as (partition by f.name order by f.nth)
    ), judged as materialized (
        select w.id, w.nth, w.weight
        from in_whole w
        group by w.id, w.nth, w.weight
        having bool_and(w.fits and w.whole_count <= w.whole_free
            and w.whole_weight - w.weight + least(w.weight, w.whole_burst) <= w.whole_tokens)
    ), spent as (
        select p.name, p.key, sum(p.weight) as weight, count(*) as claims
        from (select j.weight, m.name, m.key from judged j join candidate c on c.id = j.id join member m on m.limit_group = c.limit_group
              union all
              select j.weight, m.name, '' from judged j join candidate c on c.id = j.id join member m on m.limit_group = c.limit_group and m.key <> '') p
        group by p.name, p.key
    ), paid as (
        -- The time of a bucket never moves back: a pick that began before another one may get the
        -- lock after it.
        insert into gen_durable.limit_tokens as t (name, key, tokens, at)
        select s.name, s.key, s.tokens - spent.weight, gen_durable.clock()
        from scope s join spent on spent.name = s.name and spent.key = s.key
        where s.per_second is not null
        on conflict (name, key) do update set tokens = excluded.tokens, at = greatest(t.at, excluded.at)
    ), counted as (
        update gen_durable.limit_locks l set claims_max = case when s.at_once is not null then s.claims + spent.claims end
        from scope s join spent on spent.name = s.name and spent.key = s.key
        where s.key = '' and l.name = s.name and (s.at_once is not null or l.claims_max is not null)
    )
    select array_agg(j.id order by j.nth) into admitted from judged j;
    if admitted is not null and exists (select from unnest(p_groups) g where position(chr(2) in g) > 0) then
        perform gen_durable._hold(admitted);
    end if;
    return coalesce(admitted, '{}');
end $$;
