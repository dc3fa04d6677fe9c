-- Records that a projection could not apply the event after p_old, in a new transaction after the
-- batch was rolled back. If the event is parked, the scope skips it: its position moves to the next
-- event.
--   called by: store::projections::fail
--   index: projections_pkey, projection_failures_pkey, projection_runs_open
--   locks: the scope's row, then the row of its run, for at most the lock timeout: another
--   transaction that holds the row processes the same event, and records its failure
create function gen_durable._project_fail(
    p_tenant text, p_projection text, p_old bigint, p_error text, p_state text, p_delay float8, p_version int
) returns boolean
language plpgsql
set lock_timeout = '1s'
as $$
-- planner: pinned
declare
    replayed_to bigint;
begin
    -- Inserts the row of the scope in `projections`, since the rollback of the batch may have
    -- removed it.
    insert into gen_durable.projections (tenant, projection, version) values (p_tenant, p_projection, p_version)
    on conflict do nothing;
    update gen_durable.projections p
    set status = case p_state when 'parked' then 'running' else p_state end,
        position = p.position + (p_state = 'parked')::int,
        attempts = case p_state when 'parked' then 0 else p.attempts + 1 end,
        retry_at = case p_state when 'retrying' then gen_durable.clock() + make_interval(secs => p_delay) end,
        last_error = case when p_state <> 'parked' then p_error end,
        updated_at = gen_durable.clock()
    where p.tenant = p_tenant and p.projection = p_projection and p.position = p_old
    returning p.replaying_to into replayed_to;
    if not found then
        return false;
    end if;
    if p_state = 'parked' and replayed_to > p_old then
        perform gen_durable._check_rebuild_position(p_tenant, p_projection, p_old + 1);
    end if;
    insert into gen_durable.projection_failures as f (tenant, projection, position, state, error)
    values (p_tenant, p_projection, p_old + 1, p_state, p_error)
    on conflict (tenant, projection, position) do update
    set attempts = f.attempts + 1, state = excluded.state, error = excluded.error, last_at = gen_durable.clock(),
        resolved_at = null, redrive = false;
    return true;
end $$;
