-- The audit log: actions that operators did, or tried to do, through the dashboard and the command
-- line. The tool inserts a row before an action begins and completes the row when the action has
-- ended, so every action has a row, even if a process crashes in between. If a row has no end, the
-- action may have been done or not. The log is bounded: an insert deletes the oldest rows.
create table gen_durable.audit (
    id        bigint generated always as identity primary key,
    at        timestamptz not null default gen_durable.clock(),
    actor       text not null,                         -- the authenticated user
    source     text,                                  -- the address of the user, if known
    channel       text not null,                         -- dashboard, command
    action       text not null,
    subject   text not null, -- the instance, lane, queue or schedule that the action changes
    succeeded boolean,
    outcome   text,
    ended_at  timestamptz,
    constraint audit_end_is_complete check ((ended_at is null) = (outcome is null) and (outcome is null) = (succeeded is null))
);
