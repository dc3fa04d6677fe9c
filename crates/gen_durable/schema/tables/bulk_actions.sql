-- Bulk actions: requests of operators to retry, cancel or discard all instances that meet some
-- conditions. A runner (a dashboard, the command line, or another tool) executes a bulk action in
-- pages, in the order of the ids. The changes of a page and the progress are one transaction, so
-- another runner continues exactly where a crashed runner stopped. The table is bounded: an insert
-- deletes the oldest ended rows.
create table gen_durable.bulk_actions (
    id              bigint generated always as identity primary key,
    action          text not null,                   -- retry, cancel, discard
    -- The conditions. Null means any value.
    status          gen_durable.durable_status not null,
    machine         text,
    machine_version int,
    step            text,
    queue           text,
    tenant          text,
    key             text,
    key_prefix      text,
    key_prefix_end  text,                            -- the first text after all keys with the prefix
    lane            text,                            -- the lane key, also of an instance that has left the lane
    partition       text,
    error_contains  text,
    -- The group of the error: as the request names it, and the number in instances.error_group.
    error_group     text,
    error_group_id  bigint,
    since           timestamptz,                     -- enqueued at this time or later
    until           timestamptz,                     -- enqueued before this time
    retry_step      text, -- the step from which a retry continues; null: the current step
    reason          text not null,
    actor           text not null,                   -- the authenticated user
    source          text,                            -- the address of the user, if known
    channel         text not null,
    -- The number of matching instances that the operator saw in the preview, and whether that
    -- number was exact or a lower bound.
    expected        bigint not null,
    expected_is_exact boolean not null,
    -- The largest id of an instance at the time of the request. Later instances are not changed.
    id_max          bigint not null,
    -- The bulk action has examined all instances up to this id.
    cursor          bigint not null default 0,
    examined        bigint not null default 0,
    changed         bigint not null default 0,
    refused         bigint not null default 0,
    refusals        text[] not null default '{}',    -- the first refusals, in words
    state           text not null default 'running',
    error           text,                            -- why the bulk action failed
    -- The runner that executes the bulk action, and the end of its lease. After that time another
    -- runner may continue.
    runner          uuid,
    leased_until    timestamptz,
    requested_at    timestamptz not null default gen_durable.clock(),
    updated_at      timestamptz not null default gen_durable.clock(),
    ended_at        timestamptz,
    constraint bulk_actions_actions check (action in ('retry', 'cancel', 'discard')),
    constraint bulk_actions_states check (state in ('running', 'done', 'stopped', 'failed')),
    constraint bulk_actions_ended_has_a_time check ((state = 'running') = (ended_at is null))
);
-- Bulk actions that a runner has to execute.
create index bulk_actions_open on gen_durable.bulk_actions (id) where ended_at is null;
