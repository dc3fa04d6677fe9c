-- Events that a projection could not apply: one row per scope and event, with the number of
-- attempts.
create table gen_durable.projection_failures (
    tenant      text not null,
    projection  text not null,
    position    bigint not null,
    attempts    int not null default 1,
    state       text not null,                       -- retrying, halted, parked, resolved
    error       text not null,
    redrive     boolean not null default false,      -- a parked event that is to be applied again
    first_at    timestamptz not null default gen_durable.clock(),
    last_at     timestamptz not null default gen_durable.clock(),
    resolved_at timestamptz,
    primary key (tenant, projection, position),
    constraint projection_failures_states check (state in ('retrying', 'halted', 'parked', 'resolved'))
);
create index projection_failures_left on gen_durable.projection_failures (projection, tenant, position) where resolved_at is null;
create index projection_failures_redrive on gen_durable.projection_failures (projection) where redrive;
create index projection_failures_resolved on gen_durable.projection_failures (resolved_at) where resolved_at is not null;
