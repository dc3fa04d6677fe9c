-- 0009, first half: the event log. A tenant's events have positions 1, 2, 3 … without a gap, and whoever has read up to one has seen
-- everything below it.
--
-- A position is given under the lock of the tenant's head, by a statement that commits by itself. A caller's transaction
-- records without a position and takes no lock: however long it stays open, it blocks nobody. Whoever takes the head next
-- places what has been committed meanwhile, in the order of arrival, and then its own.

-- A tenant with events. The row is only ever locked, never written: a hot row that is written would leave a dead version
-- for every event, and each append would wade through them while somebody holds an old snapshot. How high a log is, is read
-- from the end of its index.
create table gen_durable.event_heads (
    tenant text primary key,
    constraint event_heads_names_have_a_length check (octet_length(tenant) <= 200)
);

create table gen_durable.events (
    arrival     bigint generated always as identity primary key,
    position    bigint,                              -- null until it is placed
    at          timestamptz not null default gen_durable.clock(),
    instance_id bigint,                              -- who caused it: no foreign key, the log outlives instances
    xid         xid8,                                -- the transaction that recorded it without a position
    version     int not null default 1,
    tenant      text not null default '',
    name        text not null,
    step        text,                                -- the step that recorded it
    payload     jsonb not null,
    headers     jsonb,
    constraint events_names_have_a_length check (octet_length(tenant) <= 200 and octet_length(name) between 1 and 200),
    constraint events_positions_begin_at_one check (position > 0)
) with (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 1
);

-- The log itself, in its order: two events can never have one position.
create unique index events_log on gen_durable.events (tenant, position) where position is not null;
-- What waits for a position, of one tenant and of all.
create index events_unplaced on gen_durable.events (tenant, xid, arrival) where position is null;
create index events_unplaced_all on gen_durable.events (xid) where position is null;
-- Reading by instance and by name.
create index events_instance on gen_durable.events (instance_id, arrival) where instance_id is not null;
create index events_name on gen_durable.events (tenant, name, position) where position is not null;

-- Where the last look for unplaced events of a tenant has looked: at all that had been committed by this snapshot. The next
-- look goes by the transactions that are newer, or that were under way then, and by nothing else, so that it does not wade
-- through what was placed before. Read from its end; it is a hint, and a sweep from the beginning is the truth.
create table gen_durable.event_looks (
    n      bigint generated always as identity,
    tenant text not null,
    looked pg_snapshot not null,
    primary key (tenant, n)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Give positions to what waits. The heads of these tenants are locked by this transaction.
--   called by: append, place                 index: events_unplaced, events_log, events_pkey, event_looks_pkey
--   locks: the events that it places
create function gen_durable.place_locked(p_tenants text[], p_all boolean) returns table (tenant text, placed bigint)
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
begin
    return query
    with head as materialized (
        select t.tenant,
            case when not p_all then (
                select l.looked from gen_durable.event_looks l where l.tenant = t.tenant order by l.n desc limit 1) end as looked
        from unnest(p_tenants) as t(tenant)
    ),
    waiting as materialized (
        select head.tenant, found.arrival, row_number() over (partition by head.tenant order by found.arrival) as place
        from head
        cross join lateral (
            select e.arrival from gen_durable.events e
            where e.tenant = head.tenant and e.position is null
              and e.xid >= coalesce(pg_snapshot_xmax(head.looked), '0'::xid8)
            union all
            -- `offset 0`: the join must not be turned around, or it reads all that there ever was.
            select late.arrival
            from pg_snapshot_xip(head.looked) as under_way(xid)
            cross join lateral (
                select e.arrival from gen_durable.events e
                where e.tenant = head.tenant and e.position is null and e.xid = under_way.xid
                offset 0) late
        ) found
    ),
    height as materialized (
        select distinct on (waiting.tenant) waiting.tenant, coalesce((
            select e.position from gen_durable.events e
            where e.tenant = waiting.tenant and e.position is not null
            order by e.position desc limit 1), 0) as position
        from waiting
    ),
    given as (
        update gen_durable.events e
        set position = height.position + waiting.place
        from waiting join height on height.tenant = waiting.tenant
        where e.arrival = waiting.arrival
        returning e.tenant
    ),
    counted as materialized (
        select given.tenant, count(*) as placed from given group by given.tenant
    ),
    -- The snapshot of this very statement: what it could not see is not behind it.
    noted as (
        insert into gen_durable.event_looks (tenant, looked) select counted.tenant, pg_current_snapshot() from counted
    ),
    forgotten as (
        delete from gen_durable.event_looks l using counted where l.tenant = counted.tenant
    )
    select head.tenant, coalesce(counted.placed, 0) from head left join counted on counted.tenant = head.tenant;
end $$;

-- Give positions to what waits, of these tenants, as far as nobody else is at it. Answers whom it came to.
--   called by: store::events::place          index: event_heads_pkey; as place_locked
--   locks: heads in the order of tenants, skipping what somebody holds: it waits for nobody
create function gen_durable.place_events(p_tenants text[], p_all boolean default false) returns table (tenant text, placed bigint)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    held text[];
begin
    insert into gen_durable.event_heads (tenant)
    select distinct wanted.tenant from unnest(p_tenants) as wanted(tenant)
    where not exists (select from gen_durable.event_heads h where h.tenant = wanted.tenant)
    order by 1
    on conflict do nothing;
    held := array(
        select h.tenant from gen_durable.event_heads h
        where h.tenant = any (p_tenants) order by h.tenant for no key update skip locked);
    return query select * from gen_durable.place_locked(held, p_all);
end $$;

-- Append events, in the order of the arrays. An array may be empty where every value is the usual one.
--   called by: store::events, record_riders  index: event_heads_pkey, events_log, events_unplaced, event_looks_pkey
--   locks: heads in the order of tenants. p_heads: 'wait' for them; 'skip' those that somebody holds, whose events then
--   wait for a position; 'none': take no lock, they all wait for one (in a transaction that somebody else will end).
-- Answers in the order of the arrays: the position, if there is one already, and the number of arrival.
create function gen_durable.append(
    p_tenants text[], p_names text[], p_versions int[], p_payloads text[], p_headers text[],
    p_instances bigint[], p_steps text[], p_heads text
) returns table (tenant text, pos bigint, arrival bigint)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    wanted text[];
    held text[] := '{}';
begin
    if p_heads <> 'none' then
        -- Durable before anything it leads to begins, whatever the role or the database was set to.
        if current_setting('synchronous_commit') = 'off' then
            perform set_config('synchronous_commit', 'on', true);
        end if;
        wanted := array(select distinct t from unnest(p_tenants) t order by t);
        insert into gen_durable.event_heads (tenant)
        select missing.tenant from unnest(wanted) as missing(tenant)
        where not exists (select from gen_durable.event_heads h where h.tenant = missing.tenant)
        order by missing.tenant
        on conflict do nothing;
        if p_heads = 'wait' then
            held := array(
                select h.tenant from gen_durable.event_heads h
                where h.tenant = any (wanted) order by h.tenant for no key update);
        else
            held := array(
                select h.tenant from gen_durable.event_heads h
                where h.tenant = any (wanted) order by h.tenant for no key update skip locked);
        end if;
        if cardinality(held) > 0 then
            perform gen_durable.place_locked(held, false);
        end if;
    end if;
    -- A statement of its own, with a snapshot that is newer than the locks: nobody else adds to these logs now.
    return query
    with height as materialized (
        select h.tenant, coalesce((
            select e.position from gen_durable.events e
            where e.tenant = h.tenant and e.position is not null
            order by e.position desc limit 1), 0) as position
        from unnest(held) as h(tenant)
    )
    insert into gen_durable.events as made (tenant, name, version, payload, headers, instance_id, step, position, xid)
    select e.tenant, e.name, coalesce(e.version, 1), e.payload::jsonb, e.headers::jsonb, e.instance_id, e.step,
        height.position + row_number() over (partition by e.tenant order by e.place),
        case when height.position is null then pg_current_xact_id() end
    from unnest(p_tenants, p_names, p_versions, p_payloads, p_headers, p_instances, p_steps)
        with ordinality as e(tenant, name, version, payload, headers, instance_id, step, place)
    left join height on height.tenant = e.tenant
    order by e.place
    returning made.tenant, made.position, made.arrival;
end $$;

-- Events that ride along with endings: those of the endings that were written. In a step's own transaction, whose end is
-- not ours, they take no lock.
--   called by: conclude                      index: as append
--   locks: heads, in the order of tenants, skipping what somebody holds
create function gen_durable.record_riders(p_endings jsonb, p_written bigint[], p_own_transaction boolean) returns void
language plpgsql
set search_path = gen_durable, pg_temp
as $$
begin
    perform from (
        select array_agg(r->>'tenant' order by o, n) tenants, array_agg(r->>'name' order by o, n) names,
            array_agg((r->>'version')::int order by o, n) versions, array_agg((r->'payload')::text order by o, n) payloads,
            array_agg((r->'headers')::text order by o, n) headers,
            array_agg((e->>'id')::bigint order by o, n) instances, array_agg(r->>'step' order by o, n) steps
        from jsonb_array_elements(p_endings) with ordinality x(e, o)
        cross join lateral jsonb_array_elements(e->'events') with ordinality y(r, n)
        where e ? 'events' and (e->>'id')::bigint = any (p_written)
    ) a
    cross join lateral gen_durable.append(a.tenants, a.names, a.versions, a.payloads, a.headers, a.instances, a.steps,
        case when p_own_transaction then 'none' else 'skip' end)
    where a.tenants is not null;
end $$;

-- For everybody else: record an event in the caller's own transaction. It takes no lock, and gets its position when that
-- has committed.
--   called by: SQL                           index: none
--   locks: nothing
create function gen_durable.record(
    tenant text, name text, payload jsonb, version int default 1, headers jsonb default null
) returns bigint
language sql
set search_path = gen_durable, pg_temp
as $$
    insert into gen_durable.events (tenant, name, version, payload, headers, xid)
    values (coalesce(record.tenant, ''), record.name, coalesce(record.version, 1), record.payload, record.headers, pg_current_xact_id())
    returning arrival
$$;

-- What is new since the last look: tenants with unplaced events (of transactions that were not over at p_looked), and
-- tenants with placed ones that arrived after p_from. The last row has no tenant: how far this look went.
--   called by: store::events::discover       index: events_unplaced_all, events_pkey
--   locks: nothing
create function gen_durable.discover(p_looked pg_snapshot, p_from bigint, p_limit int)
returns table (tenant text, unplaced boolean, arrival bigint, looked text, pos bigint)
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
begin
    return query
    with waiting as materialized (
        select e.tenant from gen_durable.events e
        where e.position is null and e.xid >= coalesce(pg_snapshot_xmax(p_looked), '0'::xid8)
        union all
        select late.tenant
        from pg_snapshot_xip(p_looked) as under_way(xid)
        cross join lateral (
            select e.tenant from gen_durable.events e where e.position is null and e.xid = under_way.xid offset 0) late
    ),
    latest as materialized (
        select coalesce((select e.arrival from gen_durable.events e order by e.arrival desc limit 1), 0) as arrival
    ),
    arrived as materialized (
        select e.tenant, e.arrival, e.position from gen_durable.events e
        where p_from is not null and e.arrival > p_from and e.position is not null
        order by e.arrival
        limit p_limit
    )
    select distinct waiting.tenant, true, null::bigint, null::text, null::bigint from waiting
    union all
    select arrived.tenant, false, null::bigint, null::text, max(arrived.position) from arrived group by arrived.tenant
    union all
    select null, null,
        case when (select count(*) from arrived) < p_limit then latest.arrival
             else (select max(arrived.arrival) from arrived) end,
        pg_current_snapshot()::text, null::bigint
    from latest;
end $$;

-- Walks over all tenants, in pages. One worker at a time takes a page, and the pages of all workers are one walk: how often a
-- tenant is visited does not depend on the number of workers. `behind` has a walk for each build of a projection.
create table gen_durable.log_walks (
    walk         text not null,                      -- behind, trim
    projection   text not null default '',
    version      int not null default 0,
    after_tenant text,                               -- the end of the last page; null: the next page is the first
    due_at       timestamptz not null default statement_timestamp(),
    primary key (walk, projection, version)
);

-- Take the next page of a walk. Null: it is not due, or another worker is at it. The answer begins with the tenant after which the page
-- begins, which is null for the first page; then come the page's tenants.
--   called by: scopes_behind, trim_logs      index: log_walks_pkey, event_heads_pkey
--   locks: the walk's row, skipping it if another worker holds it
create function gen_durable.walk_page(
    p_walk text, p_projection text, p_version int, p_page int, p_pause float8, p_idle float8
) returns text[]
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    walk gen_durable.log_walks;
    tenants text[];
begin
    if not exists (select from gen_durable.log_walks w
                   where w.walk = p_walk and w.projection = p_projection and w.version = p_version) then
        insert into gen_durable.log_walks (walk, projection, version) values (p_walk, p_projection, p_version)
        on conflict do nothing;
    end if;
    select w.* into walk from gen_durable.log_walks w
    where w.walk = p_walk and w.projection = p_projection and w.version = p_version and w.due_at <= statement_timestamp()
    for no key update skip locked;
    if not found then
        return null;
    end if;
    tenants := array(
        select h.tenant from gen_durable.event_heads h
        where h.tenant >= coalesce(walk.after_tenant, '') and h.tenant is distinct from walk.after_tenant
        order by h.tenant limit p_page);
    update gen_durable.log_walks w
    set after_tenant = case when cardinality(tenants) = p_page then tenants[p_page] end,
        due_at = statement_timestamp()
            + make_interval(secs => case when cardinality(tenants) = p_page then p_pause else p_idle end)
    where w.walk = p_walk and w.projection = p_projection and w.version = p_version;
    return walk.after_tenant || tenants;
end $$;

-- Delete old events of the next page of tenants, up to p_limit: never the last of a log, from which its height is read, and none
-- that a projection or a run has not read yet; a projection that has not begun with a tenant has read nothing there. A log whose first
-- event is young costs one look at the index. Answers how many are gone, and whether there may be more at once.
--   called by: store::events::trim_logs      index: events_log, events_pkey, projections_by_name, projections_pkey, projection_runs_open
--   locks: as walk_page, then the events that it deletes
create function gen_durable.trim_logs(
    p_older_seconds float8, p_followers text[], p_page int, p_limit int, p_idle float8
) returns table (gone bigint, more boolean)
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
    page text[] := gen_durable.walk_page('trim', '', 0, p_page, 0, p_idle);
    young timestamptz := gen_durable.clock() - make_interval(secs => p_older_seconds);
    followers text[];
    count bigint;
begin
    if page is null then
        return query select 0::bigint, false;
        return;
    end if;
    followers := array(
        -- From one name to the next: what this costs depends on the number of projections, not of scopes.
        with recursive name as (
            (select p.projection from gen_durable.projections p order by p.projection limit 1)
            union all
            select (select p.projection from gen_durable.projections p where p.projection > name.projection
                    order by p.projection limit 1)
            from name where name.projection is not null)
        select name.projection from name where name.projection is not null union select unnest(p_followers));
    with aged as materialized (
        select t.tenant
        from unnest(page[2:]) as t(tenant)
        cross join lateral (
            select e.at from gen_durable.events e
            where e.tenant = t.tenant and e.position is not null order by e.position limit 1) first
        where first.at < young
    ),
    floor as materialized (
        select aged.tenant, least(
            (select e.position - 1 from gen_durable.events e
             where e.tenant = aged.tenant and e.position is not null order by e.position desc limit 1),
            (select min(p.position) from gen_durable.projections p where p.tenant = aged.tenant),
            case when exists (
                select from unnest(followers) as follower(name)
                where not exists (
                    select from gen_durable.projections p where p.tenant = aged.tenant and p.projection = follower.name))
                then 0 end,
            (select min(r.position) from gen_durable.projection_runs r
             where r.tenant = aged.tenant and r.finished_at is null)) as position
        from aged
    ),
    old as materialized (
        select o.arrival
        from floor
        cross join lateral (
            select e.arrival, e.at from gen_durable.events e
            where e.tenant = floor.tenant and e.position <= floor.position
            order by e.position limit p_limit) o
        where o.at < young
        limit p_limit
    ),
    deleted as (
        delete from gen_durable.events e using old where e.arrival = old.arrival returning 1
    )
    select count(*) into count from deleted;
    if count >= p_limit then
        -- There may be more in this page: it is taken once more.
        update gen_durable.log_walks w set after_tenant = page[1], due_at = statement_timestamp()
        where w.walk = 'trim' and w.projection = '' and w.version = 0;
    end if;
    return query select count, count >= p_limit or cardinality(page) > p_page;
end $$;
