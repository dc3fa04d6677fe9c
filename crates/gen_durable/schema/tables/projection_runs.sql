-- Replays, rebuilds and verifications of a projection. Any client requests one; a worker that has
-- registered the projection executes it, and another worker continues if that one dies.
create table gen_durable.projection_runs (
    id          bigint generated always as identity primary key,
    tenant      text not null,
    projection  text not null,
    kind        text not null,                       -- replay, rebuild (in place), shadow, verify
    status      text not null default 'pending',
    force      boolean not null default false,      -- swap even if the digests differ
    version     int, -- of the code that executes it: builds with another version skip the run
    generation  int,                                 -- the rows that it writes
    position    bigint not null default 0,
    target      bigint,
    applied     bigint not null default 0,
    retired     int, -- a generation that is not read any more, and is to be cleared
    verdict     text,
    error       text, -- why it failed, or the error of its last attempt
    -- Consecutive attempts that the server cancelled, or that lost their connection.
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
-- One open run per scope: a second request is refused.
create unique index projection_runs_open on gen_durable.projection_runs (tenant, projection) where finished_at is null;
create index projection_runs_by_name on gen_durable.projection_runs (projection, id);
create index projection_runs_by_scope on gen_durable.projection_runs (projection, tenant, id);
-- Runs that a worker has to act on: open ones, and those with rows to be cleared.
create index projection_runs_due on gen_durable.projection_runs (projection, id) where finished_at is null or retired is not null;
-- Ended runs, in the order in which they are collected.
create index projection_runs_finished on gen_durable.projection_runs (finished_at) where finished_at is not null and retired is null;
