-- Gives a limit the bounds that the code declares, and removes the bounds of chosen keys.
--   called by: store::limit::reset, SQL      index: limits_pkey, limit_keys_pkey; as _wake_limits
--   locks: the row of the limit; as _wake_limits. No pick waits for these locks.
-- Returns false if no worker has declared the limit.
create function gen_durable.reset_limit(p_name text) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.limits l
    set at_once = d.at_once, per_key = d.per_key, rate = d.rate, period = d.period, burst = d.burst,
        key_rate = d.key_rate, key_period = d.key_period, key_burst = d.key_burst, changed_at = null
    from (select (jsonb_populate_record(null::gen_durable.limits, old.declared)).* from gen_durable.limits old where old.name = p_name) d
    where l.name = p_name;
    if not found then
        return false;
    end if;
    delete from gen_durable.limit_keys k where k.name = p_name;
    perform gen_durable._wake_limits(p_name);
    return true;
end $$;
