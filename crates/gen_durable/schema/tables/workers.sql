-- One row per worker, a process that runs steps. The lease of a worker covers all its claims.
create table gen_durable.workers (
    id               uuid primary key,
    lease_expires_at timestamptz not null,
    -- Since when the lease of the worker has been valid without a gap.
    started_at       timestamptz not null default statement_timestamp(),
    renewed_at       timestamptz not null default statement_timestamp(),
    host             text not null,
    pid              int not null,
    queues           text[] not null,
    machines         text[] not null,                -- 'name/version' of each machine
    -- 'machine/version/step' of each step that the worker knows: see `_knows_step`.
    steps            text[] not null default '{}',
    -- The schedules that the worker has registered. A schedule that no live worker has registered
    -- starts no instances; pages still list it.
    schedules        text[] not null default '{}',
    -- The projections that the worker has registered. A request for a run reports whether a live
    -- worker can execute the run.
    projections      text[] not null default '{}',
    -- Whether the worker has room for instances and shares the polls of its group: see `_fleet`.
    polls            boolean not null default true,
    -- When the worker last found an instance, to about a second: see `_fleet`.
    found_work_at    timestamptz not null default statement_timestamp(),
    version          text not null default '',       -- of gen_durable in the worker's build
    connections_max  int not null default 0,         -- the most connections that the worker opens
    draining         boolean not null default false  -- the worker stops: it claims no instances
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
