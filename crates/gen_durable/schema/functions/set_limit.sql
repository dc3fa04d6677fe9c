-- Changes bounds of a limit: those that p_bounds names, null for no bound. The bounds stay in force
-- until reset_limit. p_bounds has the columns of `limits`: at_once, per_key, rate, period, burst,
-- key_rate, key_period, key_burst. A rate without a burst has a burst of its own size.
-- Steps that run go on; a lower bound lets no further step begin until the number is below it.
--   called by: store::limit::set, SQL      index: limits_pkey; as _wake_limits
--   locks: the row of the limit; as _wake_limits. No pick waits for these locks.
-- Returns false if no worker has declared the limit.
create function gen_durable.set_limit(p_name text, p_bounds jsonb) returns boolean
language plpgsql
as $$
-- planner: pinned
declare
    unknown text;
begin
    select k.key into unknown from jsonb_object_keys(p_bounds) as k(key)
    where k.key <> all (array['at_once', 'per_key', 'rate', 'period', 'burst', 'key_rate', 'key_period', 'key_burst']) limit 1;
    if unknown is not null then
        raise exception 'a limit has no bound %', quote_literal(unknown) using errcode = 'invalid_parameter_value',
            hint = 'the bounds are at_once, per_key, rate, period, burst, key_rate, key_period and key_burst';
    end if;
    update gen_durable.limits l
    set at_once = b.at_once, per_key = b.per_key,
        rate = b.rate, period = case when b.rate is not null then coalesce(b.period, 1) end,
        burst = case when b.rate is not null then case when p_bounds ? 'burst' then b.burst when p_bounds ? 'rate' then b.rate else b.burst end end,
        key_rate = b.key_rate, key_period = case when b.key_rate is not null then coalesce(b.key_period, 1) end,
        key_burst = case when b.key_rate is not null
                         then case when p_bounds ? 'key_burst' then b.key_burst when p_bounds ? 'key_rate' then b.key_rate else b.key_burst end end,
        changed_at = gen_durable.clock()
    from (select (jsonb_populate_record(old, p_bounds)).* from gen_durable.limits old where old.name = p_name) b
    where l.name = p_name;
    if not found then
        return false;
    end if;
    perform gen_durable._wake_limits(p_name);
    return true;
end $$;
