-- Completes a shadow rebuild: from the commit on, readers see the rows that the run has written.
-- The caller has locked the scope's row. Returns false if the run is not at the position of the
-- scope. The failures of the run replace those of the scope: events that the run has skipped become
-- parked, and all other failures up to its position become resolved.
--   called by: store::runs::swap
--   index: projections_pkey, projection_runs_pkey, projection_failures_pkey,
--   projection_run_failures_pkey
--   locks: the rows of the scope and of the run, which this transaction has locked already; then
--   the rows of the failures
create function gen_durable._run_swap(p_run bigint, p_version int) returns boolean
language plpgsql
as $$
-- planner: pinned
declare
    run gen_durable.projection_runs;
    old_generation int;
begin
    select r.* into run from gen_durable.projection_runs r where r.id = p_run and r.status = 'running';
    select p.generation into old_generation from gen_durable.projections p
    where p.tenant = run.tenant and p.projection = run.projection;
    update gen_durable.projections p
    set generation = run.generation, version = p_version, applied = run.applied, status = 'running', attempts = 0,
        retry_at = null, last_error = null, replaying_to = 0, updated_at = gen_durable.clock()
    where p.tenant = run.tenant and p.projection = run.projection and p.position = run.position;
    if not found then
        return false;
    end if;
    update gen_durable.projection_runs r
    set status = 'done', finished_at = gen_durable.clock(), updated_at = gen_durable.clock(), retired = old_generation,
        target = run.position
    where r.id = p_run;
    update gen_durable.projection_failures f
    set state = 'resolved', resolved_at = gen_durable.clock(), redrive = false
    where f.tenant = run.tenant and f.projection = run.projection and f.position <= run.position and f.resolved_at is null
      and not exists (select from gen_durable.projection_run_failures o where o.run_id = p_run and o.position = f.position);
    insert into gen_durable.projection_failures as f (tenant, projection, position, state, error)
    select run.tenant, run.projection, o.position, 'parked', o.error
    from gen_durable.projection_run_failures o where o.run_id = p_run
    order by o.position
    on conflict (tenant, projection, position) do update set attempts = f.attempts + 1, state = 'parked',
        error = excluded.error, last_at = gen_durable.clock(), resolved_at = null;
    delete from gen_durable.projection_run_failures o where o.run_id = p_run;
    return true;
end $$;
