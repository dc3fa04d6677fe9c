-- Declares limits with the bounds that the code of a worker has. If an operator has changed the
-- bounds of a limit, it keeps those. p_limits is an array of objects with the columns of `limits`.
--   called by: store::limit::declare      index: limits_pkey, limit_locks_pkey
--   locks: the rows of the limits with a changed declaration
create function gen_durable._declare_limits(p_limits jsonb) returns void
language plpgsql
as $$
-- planner: pinned
begin
    insert into gen_durable.limits as l
        (name, at_once, per_key, rate, period, burst, key_rate, key_period, key_burst, declared)
    select d.name, d.at_once, d.per_key, d.rate, d.period, d.burst, d.key_rate, d.key_period, d.key_burst, e.value - 'name'
    from jsonb_array_elements(p_limits) as e(value)
    cross join lateral jsonb_populate_record(null::gen_durable.limits, e.value) d
    order by d.name
    on conflict (name) do update
    set declared = excluded.declared,
        at_once = case when l.changed_at is null then excluded.at_once else l.at_once end,
        per_key = case when l.changed_at is null then excluded.per_key else l.per_key end,
        rate = case when l.changed_at is null then excluded.rate else l.rate end,
        period = case when l.changed_at is null then excluded.period else l.period end,
        burst = case when l.changed_at is null then excluded.burst else l.burst end,
        key_rate = case when l.changed_at is null then excluded.key_rate else l.key_rate end,
        key_period = case when l.changed_at is null then excluded.key_period else l.key_period end,
        key_burst = case when l.changed_at is null then excluded.key_burst else l.key_burst end
    where l.declared is distinct from excluded.declared;
    insert into gen_durable.limit_locks (name)
    select e.value->>'name' from jsonb_array_elements(p_limits) as e(value) order by 1
    on conflict do nothing;
end $$;
