-- One row per scope (one projection over the log of one tenant): its position in the log, its owner
-- and its last error.
create table gen_durable.projections (
    tenant          text not null,
    projection      text not null,
    -- A stable hash of tenant and projection. The length of the tenant's name is hashed too, so
    -- that ('a', 'bc') differs from ('ab', 'c').
    partition       int generated always as (
        ('x' || substr(md5(octet_length(tenant) || ':' || tenant || projection), 1, 8))::bit(32)::int & 1023) stored,
    version         int not null,                    -- version of the code that wrote the rows
    offered         int, -- the newest version of the code for which a rebuild is due
    generation      int not null default 1,          -- the generation of the rows that readers see
    position        bigint not null default 0, -- the last event that was applied to these rows
    applied         bigint not null default 0,       -- a running hash of all applied events
    -- During a rebuild in place: the position that the scope had reached before the rebuild.
    replaying_to    bigint not null default 0,
    status          text not null default 'running',
    attempts        int not null default 0, -- failed attempts of the event after `position`
    retry_at        timestamptz,
    last_error      text,
    -- The worker that applies events to the scope. The column is a hint: until `owned_until`, other
    -- workers do not apply events to the scope.
    owner           uuid,
    owned_until     timestamptz,
    updated_at      timestamptz not null default gen_durable.clock(),
    digest          bytea,                           -- the last computed digest of the rows
    digest_position bigint,
    digest_at       timestamptz,
    primary key (tenant, projection),
    constraint projections_statuses check (status in ('running', 'retrying', 'halted')),
    constraint projections_names_have_a_length check (
        octet_length(tenant) <= 200 and octet_length(projection) between 1 and 200)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- Serves pages of the scopes of one projection, and pages of all scopes by projection.
create index projections_by_name on gen_durable.projections (projection, tenant);

-- Scopes that a worker has to retry at `retry_at`. They are few, and this index finds them at a
-- cost that does not depend on the number of scopes.
create index projections_retry on gen_durable.projections (retry_at) where retry_at is not null;
