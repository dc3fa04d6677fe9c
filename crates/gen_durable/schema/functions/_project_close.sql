-- Ends a batch of a projection: moves the scope from p_old, the position that `_project_open`
-- returned, to p_new. Returns false if the scope is not at p_old any more.
--   called by: store::projections::close
--   index: projections_pkey, projection_failures_pkey, projection_runs_open
--   locks: the scope's row, then its run's
create function gen_durable._project_close(
    p_tenant text, p_projection text, p_generation int, p_old bigint, p_new bigint, p_applied bigint, p_worker uuid,
    p_owned_seconds float8
) returns boolean
language plpgsql
as $$
-- planner: pinned
declare
    replayed_to bigint;
begin
    update gen_durable.projections p
    set position = p_new, applied = p_applied, status = 'running', attempts = 0, retry_at = null, last_error = null,
        owner = p_worker, owned_until = statement_timestamp() + make_interval(secs => p_owned_seconds),
        updated_at = gen_durable.clock()
    where p.tenant = p_tenant and p.projection = p_projection and p.position = p_old and p.generation = p_generation
    returning p.replaying_to into replayed_to;
    if not found then
        return false;
    end if;
    -- Resolves the failures of the events that this batch has applied. These may be parked events,
    -- if a rebuild has set the position of the scope back.
    update gen_durable.projection_failures f
    set state = 'resolved', resolved_at = gen_durable.clock(), redrive = false
    where f.tenant = p_tenant and f.projection = p_projection and f.position > p_old and f.position <= p_new
      and f.resolved_at is null;
    if replayed_to > p_old then
        perform gen_durable._check_rebuild_position(p_tenant, p_projection, p_new);
    end if;
    return true;
end $$;
