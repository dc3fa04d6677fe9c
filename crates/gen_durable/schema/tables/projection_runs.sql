-- Runs: replays, rebuilds and verifications of a scope. Any client may request a run. A worker that
-- has registered the projection executes the run, and another worker continues if that worker
-- crashes.
create table gen_durable.projection_runs (
    id          bigint generated always as identity primary key,
    tenant      text not null,
    projection  text not null,
    kind        text not null,                       -- replay, rebuild (in place), shadow, verify
    status      text not null default 'pending',
    force      boolean not null default false,      -- swap even if the digests differ
    -- The version of the code that executes the run. Older builds skip the run, newer builds end
    -- it.
    version     int,
    generation  int, -- the generation of the rows that the run writes
    position    bigint not null default 0,
    target      bigint,
    applied     bigint not null default 0,
    -- A generation of the projection's rows that readers do not see any more and that a worker has
    -- to delete.
    retired     int,
    verdict     text,
    error       text, -- why the run failed, or the error of its last attempt
    -- How many attempts of the run in a row were cancelled by the server or lost their connection.
    attempts    int not null default 0,
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
-- At most one open run per scope: this unique index rejects the request for a second run.
create unique index projection_runs_open on gen_durable.projection_runs (tenant, projection) where finished_at is null;
create index projection_runs_by_name on gen_durable.projection_runs (projection, id);
create index projection_runs_by_scope on gen_durable.projection_runs (projection, tenant, id);
-- Runs that a worker has to process: open runs, and finished runs with rows to be deleted.
create index projection_runs_due on gen_durable.projection_runs (projection, id) where finished_at is null or retired is not null;
-- Finished runs, in the order in which upkeep deletes them.
create index projection_runs_finished on gen_durable.projection_runs (finished_at) where finished_at is not null and retired is null;
