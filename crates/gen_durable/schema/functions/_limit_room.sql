-- Returns the bounds of limits and how much of them is free now: for each name and key, how many
-- claims may begin, how many tokens are left, and when the limit opens, if it is closed (`infinity`
-- if it is paused). The key '' stands for the whole limit. A limit that no worker has declared has
-- no bound. With p_for_people it counts claims, up to 10,001, even where there is no bound. A
-- caller that needs p_needed claims at most, and finds room for more by `claims_max`, counts none:
-- `claims` is then an upper bound.
--   called by: _admit, _serve_group, take_rate, adjust_rate, store::limit
--   index: limits_pkey, limit_keys_pkey, limit_tokens_pkey, limit_locks_pkey, limit_holds_pkey,
--   instances_limit_held, instances_pkey
--   locks: nothing. A caller that claims holds the locks of the limits, so no other transaction
--   adds a claim.
create function gen_durable._limit_room(p_names text[], p_keys text[], p_for_people boolean default false, p_needed int default null)
returns table (
    name text, key text, free int, tokens float8, burst float8, per_second float8, next_at timestamptz,
    at_once int, claims bigint, rate float8, period float8
)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
begin
    return query
    select n.name, n.key,
        case when l.paused_at is not null or l.closed_until > gen_durable.clock() then 0
             when bound.at_once is null then 2147483647
             else greatest(0, bound.at_once - coalesce(known.claims, used.claims))::int end,
        -- A clock that was set back adds no tokens.
        case when bound.rate is null then 'infinity'
             else least(bound.burst, coalesce(
                 t.tokens + greatest(0, extract(epoch from gen_durable.clock() - t.at))::float8 * bound.rate / bound.period, bound.burst)) end,
        coalesce(bound.burst, 'infinity'),
        bound.rate / bound.period,
        case when l.paused_at is not null then 'infinity' else l.closed_until end,
        bound.at_once, coalesce(known.claims, used.claims), bound.rate, bound.period
    from unnest(p_names, p_keys) as n(name, key)
    left join gen_durable.limits l on l.name = n.name
    left join gen_durable.limit_keys k on n.key <> '' and k.name = n.name and k.key = n.key
    left join gen_durable.limit_tokens t on t.name = n.name and t.key = n.key
    cross join lateral (
        select case when n.key = '' then l.at_once else coalesce(k.at_once, l.per_key) end as at_once,
            case when n.key = '' then l.rate when k.rate is not null then k.rate else l.key_rate end as rate,
            case when n.key = '' then l.period when k.rate is not null then k.period else l.key_period end as period,
            case when n.key = '' then l.burst when k.rate is not null then k.burst else l.key_burst end as burst
    ) bound
    left join lateral (
        select k.claims_max as claims from gen_durable.limit_locks k
        where n.key = '' and k.name = n.name and p_needed is not null and k.claims_max + p_needed < bound.at_once
    ) known on true
    cross join lateral (select case when p_for_people then 10001 when known.claims is null then bound.at_once end as count_to) counting
    cross join lateral (
        select count(*) as claims
        from (
            (select 1 from gen_durable.instances i
             where i.limit_group is not null and (i.status = 'executing' or i.locked_by is not null)
               and i.limit_group >= n.name || chr(1) || n.key
               and i.limit_group < case when n.key = '' then n.name || chr(2) else n.name || chr(1) || n.key || chr(3) end
               and counting.count_to is not null
             order by i.limit_group
             limit counting.count_to)
            union all
            (select 1 from gen_durable.limit_holds h
             join gen_durable.instances i on i.id = h.instance_id and i.claim_epoch in (h.claim_epoch, h.claim_epoch + (i.status = 'cancelled')::int)
             where h.name = n.name and (n.key = '' or h.key = n.key) and counting.count_to is not null
               and (i.status = 'executing' or i.locked_by is not null)
             limit counting.count_to)
        ) claim
    ) used;
end $$;
