-- One row per occurrence of a schedule, or of a repeating timer of a wait. An occurrence ends once:
-- fired, missed or cancelled.
create table gen_durable.timers (
    id          bigint generated always as identity primary key,
    due_at      timestamptz not null,
    armed_at    timestamptz not null default gen_durable.clock(),
    anchor_at   timestamptz not null,
    ended_at    timestamptz,
    instance_id bigint,                              -- the instance that waits
    await_seq   bigint, -- identifies the wait: the step_seq of the instance while it waits
    started_id  bigint,                              -- the instance that this occurrence started
    remaining   int, -- how many occurrences may follow; null: no limit
    missed_count int not null default 0,             -- missed occurrences that this one stands for
    manual     boolean not null default false,
    state       text not null default 'pending',
    missed      text not null,
    cycle       text not null,
    schedule    text,
    -- The instance to enqueue; null if the code of the schedule makes the instance.
    new_instance       jsonb,
    constraint timers_belong_to_one check ((instance_id is null) <> (schedule is null)),
    constraint timers_repeating_are_complete check (instance_id is null or (await_seq is not null and new_instance is not null)),
    constraint timers_have_a_state check (state in ('pending', 'fired', 'missed', 'cancelled')),
    constraint timers_end_once check ((state = 'pending') = (ended_at is null)),
    constraint timers_counts_are_not_negative check (remaining >= 0 and missed_count >= 0)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);

-- Pending timers by due time, for the timer loop of each worker.
create index timers_due on gen_durable.timers (due_at, id) where state = 'pending';
-- The repeating timers of a wait. The transaction that ends the wait cancels them.
create index timers_repeating on gen_durable.timers (instance_id) where state = 'pending' and instance_id is not null;
-- A schedule has at most one pending regular occurrence, and no occurrence happens twice.
create unique index timers_next on gen_durable.timers (schedule) where state = 'pending' and schedule is not null and not manual;
create unique index timers_once on gen_durable.timers (schedule, due_at) where schedule is not null and state <> 'cancelled';
-- Fired, missed and cancelled timers, which upkeep deletes after their retention.
create index timers_ended on gen_durable.timers (ended_at) where ended_at is not null;
