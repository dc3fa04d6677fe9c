-- A process that runs steps. Its lease covers all its claims.
create table gen_durable.workers (
    id               uuid primary key,
    lease_expires_at timestamptz not null,
    -- Since when its lease has been valid without a gap.
    started_at       timestamptz not null default statement_timestamp(),
    renewed_at       timestamptz not null default statement_timestamp(),
    host             text not null,
    pid              int not null,
    queues           text[] not null,
    machines         text[] not null,                -- 'name/version' of all that it can run
    -- 'name/version/step' of all that it knows: see `_knows_step`.
    steps            text[] not null default '{}',
    -- The schedules that it has registered. A schedule that no live worker has registered is shown
    -- and starts nothing.
    schedules        text[] not null default '{}',
    -- The projections that it has registered. A request for a run reports whether a live worker can
    -- execute it.
    projections      text[] not null default '{}'
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
