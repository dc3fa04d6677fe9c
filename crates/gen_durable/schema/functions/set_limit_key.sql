-- Sets the bounds of one key of a limit, which replace `per_key` and `key_rate` of the limit for
-- that key: {"at_once": 20, "rate": 100, "period": 60, "burst": 10}. Null removes them.
--   called by: store::limit::set_key, SQL      index: limits_pkey, limit_keys_pkey; as _wake_limits
--   locks: the row of the key; as _wake_limits. No pick waits for these locks.
-- Returns false if no worker has declared the limit.
create function gen_durable.set_limit_key(p_name text, p_key text, p_bounds jsonb) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    if not exists (select from gen_durable.limits l where l.name = p_name) then
        return false;
    end if;
    if p_key = '' or p_key ~ '[\x01-\x1f]' then
        raise exception 'the key of a limit must not be empty or contain control characters' using errcode = 'invalid_parameter_value';
    end if;
    if p_bounds is null then
        delete from gen_durable.limit_keys k where k.name = p_name and k.key = p_key;
    else
        insert into gen_durable.limit_keys as k (name, key, at_once, rate, period, burst)
        select p_name, p_key, b.at_once, b.rate, case when b.rate is not null then coalesce(b.period, 1) end,
            case when b.rate is not null then coalesce(b.burst, b.rate) end
        from jsonb_populate_record(null::gen_durable.limit_keys, p_bounds) b
        on conflict (name, key) do update set
            at_once = excluded.at_once, rate = excluded.rate, period = excluded.period, burst = excluded.burst;
    end if;
    perform gen_durable._wake_limits(p_name);
    return true;
end $$;
