-- Begins a batch of a run (a rebuild, a replay or a verification). With p_scope it first locks the
-- scope's row, and waits for the lock, so that no normal batch changes the scope during the batch
-- of the run.
--   called by: store::runs::open      index: projection_runs_pkey, projections_pkey, events_log
--   locks: the scope's row if p_scope; then the run's row, skipping it if it is locked
create function gen_durable._run_open(
    p_run bigint, p_version int, p_worker uuid, p_names text[], p_limit int, p_bytes bigint, p_to bigint, p_scope boolean
) returns table (
    verdict text, run_position bigint, run_generation int, applied bigint, scope_position bigint, generation int,
    scope_version int, scope_applied bigint, kind text, force boolean, target bigint,
    pos bigint, at timestamptz, name text, version int, payload text, headers text, instance_id bigint, step text
)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    run gen_durable.projection_runs;
    scope gen_durable.projections;
    verdict text := 'go';
begin
    if p_scope then
        perform from gen_durable.projections p
        where (p.tenant, p.projection) = (select r.tenant, r.projection from gen_durable.projection_runs r where r.id = p_run)
        for no key update;
    end if;
    select r.* into run from gen_durable.projection_runs r where r.id = p_run for no key update skip locked;
    if run.id is null then
        verdict := 'locked';
    elsif run.finished_at is not null then
        verdict := 'over';
    elsif run.owner <> p_worker and run.owned_until > statement_timestamp() then
        verdict := 'owned';
    else
        select p.* into scope from gen_durable.projections p where p.tenant = run.tenant and p.projection = run.projection;
        -- Two versions of the code must not write rows of one generation: a build skips a run of
        -- newer code, and ends a run of older code.
        if greatest(scope.version, run.version) > p_version then
            verdict := 'newer';
        elsif run.version < p_version or run.kind = 'replay' and scope.version < p_version then
            verdict := 'outdated';
        elsif run.status = 'pending' then
            update gen_durable.projection_runs r
            set status = 'running', started_at = gen_durable.clock(), owner = p_worker, version = p_version,
                target = coalesce(r.target, scope.position),
                generation = case when run.kind in ('shadow', 'verify') then 1 + greatest(scope.generation, (
                    select max(o.generation) from gen_durable.projection_runs o
                    where o.tenant = run.tenant and o.projection = run.projection)) else scope.generation end
            where r.id = p_run
            returning r.* into run;
        end if;
    end if;
    return query select verdict, run.position, run.generation, run.applied, scope.position, scope.generation, scope.version,
        scope.applied, run.kind, run.force, run.target,
        null::bigint, null::timestamptz, null::text, null::int, null::text, null::text, null::bigint, null::text;
    if verdict = 'go' then
        return query
        select null::text, null::bigint, null::int, null::bigint, null::bigint, null::int, null::int, null::bigint, null::text,
            null::boolean, null::bigint, e.*
        from gen_durable._events_after(run.tenant, run.position,
            least(p_to, case when run.kind = 'replay' then run.target else scope.position end), p_names, p_limit, p_bytes) e;
    end if;
end $$;
