-- A scope: one projection of one tenant, with its cursor, its owner and its last error.
create table gen_durable.projections (
    tenant          text not null,
    projection      text not null,
    -- A stable hash of both: part of the identity of the scope. The length distinguishes ('a',
    -- 'bc') from ('ab', 'c').
    partition       int generated always as (
        ('x' || substr(md5(octet_length(tenant) || ':' || tenant || projection), 1, 8))::bit(32)::int & 1023) stored,
    version         int not null,                    -- of the code that wrote these rows
    offered         int, -- the newest version that waits for a rebuild of them
    generation      int not null default 1,          -- the rows that readers see
    position        bigint not null default 0,       -- the last event that is applied in them
    applied         bigint not null default 0,       -- a running hash of all applied events
    -- A rebuild in place: the position that was reached before it.
    replaying_to    bigint not null default 0,
    status          text not null default 'running',
    attempts        int not null default 0, -- failed attempts of the event after `position`
    retry_at        timestamptz,
    last_error      text,
    -- The worker that applies events to it: a hint that saves others the attempt.
    owner           uuid,
    owned_until     timestamptz,
    updated_at      timestamptz not null default gen_durable.clock(),
    digest          bytea,                           -- of its rows, when it was last computed
    digest_position bigint,
    digest_at       timestamptz,
    primary key (tenant, projection),
    constraint projections_statuses check (status in ('running', 'retrying', 'halted')),
    constraint projections_names_have_a_length check (
        octet_length(tenant) <= 200 and octet_length(projection) between 1 and 200)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- Pages of the scopes of one projection, and of all scopes by projection.
create index projections_by_name on gen_durable.projections (projection, tenant);

-- Scopes that are to be retried at a time: few, and found whatever the number of scopes.
create index projections_retry on gen_durable.projections (retry_at) where retry_at is not null;
