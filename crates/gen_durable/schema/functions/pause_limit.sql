-- Pauses a limit: no step that takes it begins until resume_limit. Steps that run go on.
--   called by: store::limit::pause, SQL      index: limits_pkey
--   locks: the row of the limit. No pick waits for this lock.
-- Returns false if no worker has declared the limit.
create function gen_durable.pause_limit(p_name text) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.limits l set paused_at = coalesce(l.paused_at, gen_durable.clock()) where l.name = p_name;
    return found;
end $$;
