-- 0010, second half: projections, their runs and their failures.

-- A read model of one tenant: a scope. Its cursor, whose turn it is, and what went wrong.
create table gen_durable.projections (
    tenant          text not null,
    projection      text not null,
    -- A stable hash of both: part of the identity of the scope. The length keeps ('a', 'bc') and ('ab', 'c') apart.
    partition       int generated always as (
        ('x' || substr(md5(octet_length(tenant) || ':' || tenant || projection), 1, 8))::bit(32)::int & 1023) stored,
    version         int not null,                    -- of the code whose rows these are
    offered         int,                             -- the newest version that waits for a rebuild of them
    generation      int not null default 1,          -- which rows readers see
    position        bigint not null default 0,       -- the last event that is in them
    applied         bigint not null default 0,       -- a running hash of all that was applied
    replaying_to    bigint not null default 0,       -- up to here it has been before: a rebuild in place
    status          text not null default 'running',
    attempts        int not null default 0,          -- failed tries of the event after `position`
    retry_at        timestamptz,
    last_error      text,
    owner           uuid,                            -- who works on it: a hint that saves others the try
    owned_until     timestamptz,
    updated_at      timestamptz not null default gen_durable.clock(),
    digest          bytea,                           -- of its rows, when it was last asked for
    digest_position bigint,
    digest_at       timestamptz,
    primary key (tenant, projection),
    constraint projections_statuses check (status in ('running', 'retrying', 'halted')),
    constraint projections_names_have_a_length check (
        octet_length(tenant) <= 200 and octet_length(projection) between 1 and 200)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- Pages of one projection's scopes, and of all by projection.
create index projections_by_name on gen_durable.projections (projection, tenant);

-- Scopes that are to be tried at a time: few, and found whatever the number of scopes.
create index projections_retry on gen_durable.projections (retry_at) where retry_at is not null;

-- Which projections a process has registered: who asks for a run is told whether anybody is there to do it.
alter table gen_durable.workers add column projections text[] not null default '{}';

-- Replays, rebuilds and verifications: asked for by anybody, done by a process that knows the projection, any of them and
-- one after the other if need be.
create table gen_durable.projection_runs (
    id          bigint generated always as identity primary key,
    tenant      text not null,
    projection  text not null,
    kind        text not null,                       -- replay, rebuild (in place), shadow, verify
    status      text not null default 'pending',
    anyway      boolean not null default false,      -- swap also if the digests differ
    version     int,                                 -- of the code that does it: builds of another leave it alone
    generation  int,                                 -- the rows that it fills
    position    bigint not null default 0,
    target      bigint,
    applied     bigint not null default 0,
    retired     int,                                 -- a generation that nobody reads any more, to be cleared
    verdict     text,
    error       text,                                -- why it failed, or what it met at its last try
    attempts    int not null default 0,              -- tries in a row that the server cancelled, or whose connection broke
    requested_by text,
    owner       uuid,
    owned_until timestamptz,
    inserted_at timestamptz not null default gen_durable.clock(),
    started_at  timestamptz,
    updated_at  timestamptz not null default gen_durable.clock(),
    finished_at timestamptz,
    constraint projection_runs_kinds check (kind in ('replay', 'rebuild', 'shadow', 'verify')),
    constraint projection_runs_statuses check (status in ('pending', 'running', 'done', 'failed', 'cancelled')),
    constraint projection_runs_terminal_has_an_end check ((status in ('done', 'failed', 'cancelled')) = (finished_at is not null))
);
-- One at a time in a scope: a second is refused, by whomever and from wherever it is asked for.
create unique index projection_runs_open on gen_durable.projection_runs (tenant, projection) where finished_at is null;
create index projection_runs_by_name on gen_durable.projection_runs (projection, id);
create index projection_runs_by_scope on gen_durable.projection_runs (projection, tenant, id);
-- What a worker has to do something about: open ones, and those that have left rows to be cleared.
create index projection_runs_due on gen_durable.projection_runs (projection, id) where finished_at is null or retired is not null;
-- What has ended, in the order in which it is collected.
create index projection_runs_finished on gen_durable.projection_runs (finished_at) where finished_at is not null and retired is null;

-- What a projection could not apply: once for each event, with how often it was tried.
create table gen_durable.projection_failures (
    tenant      text not null,
    projection  text not null,
    position    bigint not null,
    attempts    int not null default 1,
    state       text not null,                       -- retrying, halted, parked, resolved
    error       text not null,
    redrive     boolean not null default false,      -- a parked one that is to be tried again
    first_at    timestamptz not null default gen_durable.clock(),
    last_at     timestamptz not null default gen_durable.clock(),
    resolved_at timestamptz,
    primary key (tenant, projection, position),
    constraint projection_failures_states check (state in ('retrying', 'halted', 'parked', 'resolved'))
);
create index projection_failures_left on gen_durable.projection_failures (projection, tenant, position) where resolved_at is null;
create index projection_failures_redrive on gen_durable.projection_failures (projection) where redrive;
create index projection_failures_resolved on gen_durable.projection_failures (resolved_at) where resolved_at is not null;

-- Events that a run passed over. When the rows of a shadow are read, they are what is parked.
create table gen_durable.projection_run_failures (
    run_id   bigint not null references gen_durable.projection_runs (id) on delete cascade,
    position bigint not null,
    error    text not null,
    primary key (run_id, position)
);

-- Which rows of a projection are to be read. Ask in the statement that reads them, or in one REPEATABLE READ transaction.
create function gen_durable.generation(p_tenant text, p_projection text) returns int
    language sql stable parallel safe
    as $$ select coalesce((select p.generation from gen_durable.projections p
                           where p.tenant = p_tenant and p.projection = p_projection), 1) $$;

-- Events of a tenant after a position, up to another, by number and by weight (and at least one).
--   called by: project_open, run_open        index: events_log
--   locks: nothing
create function gen_durable.events_after(
    p_tenant text, p_after bigint, p_to bigint, p_names text[], p_limit int, p_bytes bigint
) returns table (pos bigint, at timestamptz, name text, version int, payload text, headers text, instance_id bigint, step text)
language sql stable
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
as $$
    select f.position, f.at, f.name, f.version, case when f.name = any (p_names) then f.payload::text end, f.headers::text,
        f.instance_id, f.step
    from (
        select e.*, sum(pg_column_size(e.payload)) over (order by e.position) - pg_column_size(e.payload) as before
        from (
            select * from gen_durable.events e
            where e.tenant = p_tenant and e.position > p_after and e.position <= coalesce(p_to, 9223372036854775807)
            order by e.position
            limit p_limit
        ) e
    ) f
    where f.before < p_bytes
    order by f.position
$$;

-- Begin a batch: whose turn is it, where does the scope stand, and what comes next. The first row has no event.
-- A redrive (p_redrive) applies one parked event out of order. It is blocked while the cursor is before that event, which live
-- will then apply, and while a run is open, which may apply it.
--   called by: store::projections::open      index: projections_pkey, events_log, projection_failures_pkey, projection_runs_open
--   locks: the scope's row, skipping it if somebody works on it. This saves work; what serialises writers is the guard of
--   project_close.
create function gen_durable.project_open(
    p_tenant text, p_projection text, p_version int, p_worker uuid, p_names text[], p_limit int, p_bytes bigint,
    p_redrive bigint, p_force boolean
) returns table (
    verdict text, scope_position bigint, generation int, applied bigint, replaying_to bigint, attempts int, scope_version int,
    wait_seconds float8,
    pos bigint, at timestamptz, name text, version int, payload text, headers text, instance_id bigint, step text
)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
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
        from gen_durable.events_after(p_tenant, coalesce(p_redrive - 1, scope.position), p_redrive, p_names, p_limit, p_bytes) e;
    end if;
end $$;

-- A rebuild in place follows the cursor, and is over when that has come to where it was before.
--   called by: project_close, project_fail   index: projection_runs_open
--   locks: the run's row
create function gen_durable.rebuild_follows(p_tenant text, p_projection text, p_new bigint) returns void
language sql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
as $$
    update gen_durable.projection_runs r
    set position = least(p_new, r.target), updated_at = gen_durable.clock(),
        status = case when p_new >= r.target then 'done' else r.status end,
        verdict = case when p_new >= r.target then 'rebuilt up to position ' || r.target end,
        finished_at = case when p_new >= r.target then gen_durable.clock() end
    where r.tenant = p_tenant and r.projection = p_projection and r.kind = 'rebuild' and r.status = 'running'
      and r.finished_at is null
$$;

-- End a batch: the cursor moves from where it was found, or not at all.
--   called by: store::projections::close     index: projections_pkey, projection_failures_pkey, projection_runs_open
--   locks: the scope's row, then its run's
create function gen_durable.project_close(
    p_tenant text, p_projection text, p_generation int, p_old bigint, p_new bigint, p_applied bigint, p_worker uuid,
    p_owned_seconds float8
) returns boolean
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off
set jit = off
as $$
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
    -- Also events that were parked: the cursor was set back by a rebuild, and this batch has applied them.
    update gen_durable.projection_failures f
    set state = 'resolved', resolved_at = gen_durable.clock(), redrive = false
    where f.tenant = p_tenant and f.projection = p_projection and f.position > p_old and f.position <= p_new
      and f.resolved_at is null;
    if replayed_to > p_old then
        perform gen_durable.rebuild_follows(p_tenant, p_projection, p_new);
    end if;
    return true;
end $$;

-- An event that could not be applied, after its batch was rolled back. Parked, it is passed over: the cursor moves on.
--   called by: store::projections::fail      index: projections_pkey, projection_failures_pkey, projection_runs_open
--   locks: the scope's row, then its run's. It does not wait long: who holds the row is at the same event, and records it
create function gen_durable.project_fail(
    p_tenant text, p_projection text, p_old bigint, p_error text, p_state text, p_delay float8, p_version int
) returns boolean
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set lock_timeout = '1s'
as $$
declare
    replayed_to bigint;
begin
    -- The row may have been rolled back with the batch that made it.
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
        perform gen_durable.rebuild_follows(p_tenant, p_projection, p_old + 1);
    end if;
    insert into gen_durable.projection_failures as f (tenant, projection, position, state, error)
    values (p_tenant, p_projection, p_old + 1, p_state, p_error)
    on conflict (tenant, projection, position) do update
    set attempts = f.attempts + 1, state = excluded.state, error = excluded.error, last_at = gen_durable.clock(),
        resolved_at = null, redrive = false;
    return true;
end $$;

-- Begin a batch of a run. With p_scope the scope's row is locked first, and waited for: live stands still meanwhile.
--   called by: store::runs::open             index: projection_runs_pkey, projections_pkey, events_log
--   locks: the scope's row if p_scope, then the run's row, skipping it if somebody works on it
create function gen_durable.run_open(
    p_run bigint, p_version int, p_worker uuid, p_names text[], p_limit int, p_bytes bigint, p_to bigint, p_scope boolean
) returns table (
    verdict text, run_position bigint, run_generation int, applied bigint, scope_position bigint, generation int,
    scope_version int, scope_applied bigint, kind text, anyway boolean, target bigint,
    pos bigint, at timestamptz, name text, version int, payload text, headers text, instance_id bigint, step text
)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
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
        -- Rows of two versions of the code are never mixed: a build leaves alone what is a newer one's, and ends what an older one left.
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
        scope.applied, run.kind, run.anyway, run.target,
        null::bigint, null::timestamptz, null::text, null::int, null::text, null::text, null::bigint, null::text;
    if verdict = 'go' then
        return query
        select null::text, null::bigint, null::int, null::bigint, null::bigint, null::int, null::int, null::bigint, null::text,
            null::boolean, null::bigint, e.*
        from gen_durable.events_after(run.tenant, run.position,
            least(p_to, case when run.kind = 'replay' then run.target else scope.position end), p_names, p_limit, p_bytes) e;
    end if;
end $$;

-- The last act of a shadow: readers see its rows from now on. Its position is the scope's, which is locked. Failures are now
-- those of the shadow: the events that it passed over are parked, the others up to its position are resolved.
--   called by: store::runs::swap             index: projections_pkey, projection_runs_pkey, projection_failures_pkey,
--                                                   projection_run_failures_pkey
--   locks: the scope's row and the run's, which this transaction holds already; then the failures'
create function gen_durable.run_swap(p_run bigint, p_version int) returns boolean
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
as $$
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

-- Scopes that have something to do and that no other worker is at: those whose time to be tried again has come, and those of the next
-- page of tenants that are behind their log. Also scopes with the rows of an older version, for a projection that does
-- something about that by itself, unless that is under way or has failed. The last row has no tenant: whether a page was full.
-- With p_all the page is of all tenants, whatever the walk says: for a test bench.
--   called by: store::projections::behind    index: projections_retry, event_heads_pkey, projections_pkey, events_log, projection_runs_open
--   locks: as walk_page
create function gen_durable.scopes_behind(
    p_projections text[], p_versions int[], p_eager boolean[], p_worker uuid, p_page int, p_pause float8, p_idle float8,
    p_all boolean
) returns table (tenant text, projection text, more boolean)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    build record;
    page text[];
    more boolean := false;
begin
    return query
    with due as materialized (
        select p.tenant, p.projection, p.version, p.position, p.owner, p.owned_until from gen_durable.projections p
        where p.retry_at <= gen_durable.clock() and p.status <> 'halted'
        order by p.retry_at
    )
    select due.tenant, due.projection, null::boolean
    from due join unnest(p_projections, p_versions) as b(projection, version)
        on b.projection = due.projection and b.version = due.version
    where (due.owner is null or due.owner = p_worker or due.owned_until < statement_timestamp())
      and due.position < (
        select e.position from gen_durable.events e
        where e.tenant = due.tenant and e.position is not null order by e.position desc limit 1)
    limit p_page;
    for build in select * from unnest(p_projections, p_versions, p_eager) as b(projection, version, eager) loop
        page := case
            when p_all then null::text || array(select h.tenant from gen_durable.event_heads h order by h.tenant)
            else gen_durable.walk_page('behind', build.projection, build.version, p_page, p_pause, p_idle) end;
        continue when page is null;
        more := more or cardinality(page) > p_page;
        return query
        select t.tenant, build.projection, null::boolean
        from unnest(page[2:]) as t(tenant)
        left join gen_durable.projections p on p.tenant = t.tenant and p.projection = build.projection
        where (p.owner is null or p.owner = p_worker or p.owned_until < statement_timestamp())
          and case
            when p.version < build.version then build.eager and not exists (
                select from gen_durable.projection_runs r
                where r.tenant = p.tenant and r.projection = p.projection
                  and (r.finished_at is null or r.status = 'failed' and r.requested_by = 'version ' || build.version))
            when p.version > build.version or p.status = 'halted' or p.retry_at > gen_durable.clock() then false
            else coalesce(p.position, 0) < coalesce((
                select e.position from gen_durable.events e
                where e.tenant = t.tenant and e.position is not null order by e.position desc limit 1), 0)
          end;
    end loop;
    return query select null::text, null::text, more;
end $$;
