-- The audit log: what operators did, and tried to do, through the dashboard and the command line. A
-- row is written before an action begins and completed when it has ended, so there is no action
-- without a row, whichever process dies in between. An action without an end may have been done or
-- not. The log is bounded: an insert deletes the oldest row.
create table gen_durable.audit (
    id        bigint generated always as identity primary key,
    at        timestamptz not null default gen_durable.clock(),
    actor       text not null,                         -- the authenticated user
    source     text,                                  -- the address of the user, if it is known
    channel       text not null,                         -- dashboard, command
    action       text not null,
    subject   text not null, -- the instance, lane, queue or schedule it is about
    succeeded boolean,
    outcome   text,
    ended_at  timestamptz,
    constraint audit_end_is_complete check ((ended_at is null) = (outcome is null) and (outcome is null) = (succeeded is null))
);
