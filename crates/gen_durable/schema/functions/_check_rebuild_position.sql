-- Sets the position of a rebuild in place to the position of its scope. The rebuild is done when
-- the scope has reached again the position that it had before the rebuild.
--   called by: _project_close, _project_fail      index: projection_runs_open
--   locks: the run's row
create function gen_durable._check_rebuild_position(p_tenant text, p_projection text, p_new bigint) returns void
language sql
as $$
-- planner: pinned
    update gen_durable.projection_runs r
    set position = least(p_new, r.target), updated_at = gen_durable.clock(),
        status = case when p_new >= r.target then 'done' else r.status end,
        verdict = case when p_new >= r.target then 'rebuilt up to position ' || r.target end,
        finished_at = case when p_new >= r.target then gen_durable.clock() end
    where r.tenant = p_tenant and r.projection = p_projection and r.kind = 'rebuild' and r.status = 'running'
      and r.finished_at is null
$$;
