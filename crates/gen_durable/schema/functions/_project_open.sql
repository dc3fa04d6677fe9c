-- Begins a batch of a projection: returns whether the worker may apply events to the scope, the
-- position of the scope, and the next events. The first row has no event. A redrive (p_redrive)
-- applies one parked event out of order. The redrive is blocked while the position of the scope is
-- before that event, since the normal batches will apply the event, and while a run is open, since
-- the run may apply the event.
--   called by: store::projections::open
--   index: projections_pkey, events_log, projection_failures_pkey, projection_runs_open
--   locks: the scope's row, skipping it if it is locked. The lock only saves work: the condition on
--   the position in _project_close decides which worker commits.
create function gen_durable._project_open(
    p_tenant text, p_projection text, p_version int, p_worker uuid, p_names text[], p_limit int, p_bytes bigint,
    p_redrive bigint, p_force boolean
) returns table (
    verdict text, scope_position bigint, generation int, applied bigint, replaying_to bigint, attempts int, scope_version int,
    wait_seconds float8,
    pos bigint, at timestamptz, name text, version int, payload text, headers text, instance_id bigint, step text
)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    scope gen_durable.projections;
    verdict text := 'go';
    wait_seconds float8 := 0;
begin
    if not exists (select from gen_durable.projections p where p.tenant = p_tenant and p.projection = p_projection) then
        insert into gen_durable.projections (tenant, projection, version) values (p_tenant, p_projection, p_version)
        on conflict do nothing;
    end if;
    select p.* into scope from gen_durable.projections p
    where p.tenant = p_tenant and p.projection = p_projection
    for no key update skip locked;
    if scope.tenant is null then
        verdict := 'locked';
    elsif scope.version <> p_version then
        verdict := case when scope.version < p_version then 'outdated' else 'newer' end;
    elsif scope.owner <> p_worker and scope.owned_until > statement_timestamp() and not p_force then
        verdict := 'owned';
    elsif scope.status = 'halted' and p_redrive is null then
        verdict := 'halted';
    elsif scope.retry_at > gen_durable.clock() and p_redrive is null then
        verdict := 'waiting';
        wait_seconds := extract(epoch from scope.retry_at - gen_durable.clock());
    elsif p_redrive is not null and (
        scope.position < p_redrive
        or exists (select from gen_durable.projection_runs r
                   where r.tenant = p_tenant and r.projection = p_projection and r.finished_at is null)
        or not exists (select from gen_durable.projection_failures f
                       where f.tenant = p_tenant and f.projection = p_projection and f.position = p_redrive
                         and f.state = 'parked' and f.redrive)
    ) then
        verdict := 'blocked';
    end if;
    return query select verdict, scope.position, scope.generation, scope.applied, scope.replaying_to, scope.attempts,
        scope.version, wait_seconds,
        null::bigint, null::timestamptz, null::text, null::int, null::text, null::text, null::bigint, null::text;
    if verdict = 'go' then
        return query
        select null::text, null::bigint, null::int, null::bigint, null::bigint, null::int, null::int, null::float8, e.*
        from gen_durable._events_after(p_tenant, coalesce(p_redrive - 1, scope.position), p_redrive, p_names, p_limit, p_bytes) e;
    end if;
end $$;
