-- Ends the pause of a limit, and opens it if a step has closed it.
--   called by: store::limit::resume, SQL      index: limits_pkey; as _wake_limits
--   locks: the row of the limit; as _wake_limits. No pick waits for these locks.
-- Returns false if no worker has declared the limit.
create function gen_durable.resume_limit(p_name text) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.limits l set paused_at = null, closed_until = null where l.name = p_name;
    if not found then
        return false;
    end if;
    perform gen_durable._wake_limits(p_name);
    return true;
end $$;
