-- Closes a limit for some seconds: no step that takes it begins before. For a provider that has
-- answered "wait". A limit that is closed for longer stays so.
--   called by: store::limit::close, SQL      index: limits_pkey
--   locks: the row of the limit. No pick waits for this lock.
-- Returns false if no worker has declared the limit.
create function gen_durable.close_limit(p_name text, p_seconds float8) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.limits l
    set closed_until = greatest(l.closed_until, gen_durable.clock() + make_interval(secs => least(p_seconds, 31622400)))
    where l.name = p_name;
    return found;
end $$;
