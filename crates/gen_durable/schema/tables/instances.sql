-- Arrival numbers. Cache 1, so that the numbers of one producer are in the order of its enqueues.
create sequence gen_durable.arrival_numbers cache 1;
-- Fencing tokens. A later claim of the same instance, lane or partition key has a larger one,
-- whichever process makes it.
create sequence gen_durable.fencing_tokens cache 1;

-- An instance of a machine or a job. Columns that are never null and have a fixed width come first,
-- then the indexed ones: an update compares every indexed column of the old and the new row, and
-- reaches it over all columns before it.
create table gen_durable.instances (
    id               bigint generated always as identity primary key,
    -- The fence: + 1 by every claim of a pick or as a successor under a partition key, and whenever
    -- the instance leaves executing or queued.
    claim_epoch      bigint not null default 0,
    -- + 1 by every commit of the worker that has the claim.
    step_seq         bigint not null default 0,
    -- The step_seq at which the current step was entered; the same for all its retries.
    step_entry_seq            bigint not null default 0,
    eligible_at      timestamptz not null default gen_durable.clock(),
    inserted_at      timestamptz not null default gen_durable.clock(),
    updated_at       timestamptz not null default gen_durable.clock(),
    machine_version      int not null default 1,
    -- Runs of the current step without progress: failures, retries that the step asked for, crashes
    -- of its worker.
    attempt          int not null default 0,
    -- Those of them that failed: Policy::attempts limits these.
    failures         int not null default 0,
    -- + 1 by every spawn: a child of an older spawn is not counted.
    join_generation  int not null default 0,
    children_pending int not null default 0,
    status           gen_durable.durable_status not null default 'runnable',
    priority         smallint not null default 0,    -- lower first
    -- Crashes of workers that had claimed it, since its last commit; from the second on, only those
    -- while its step ran.
    crash_count      smallint not null default 0,
    -- Runnable, and another instance holds its partition key.
    partition_waiting        boolean not null default false,
    -- Has a lane position: it waits in its lane, or has the lane.
    in_lane          boolean not null default false,
    -- If it fails for good, it keeps its position and blocks its lane.
    lane_blocks      boolean not null default false,
    join_any         boolean not null default false, -- the first child that settles ends the join
    -- Has repeating timers beside its wait; without them the end of the wait costs one comparison.
    has_repeating_timers boolean not null default false,
    queue            text not null default 'default',
    tenant           text not null default '',
    machine              text not null,
    -- The worker: for people and for the reaper, never a fence. See `_cancel_live`.
    locked_by        uuid,
    settled_at      timestamptz,
    -- A short key of its lane.
    lane_hash        bigint generated always as (gen_durable._lane_hash(tenant, lane_key)) stored,
    lane_position    bigint,                         -- its position in its lane, once it is placed
    -- Its arrival number, while its lane or partition key has to be read by `_place`.
    arrival_no          bigint,
    partition_key    text,
    lane_key         text,
    parent_id        bigint, -- no foreign key: the deletion of a parent must not write its children
    parent_generation int,                           -- the spawn of its parent that counts it
    deadline_at      timestamptz,                    -- when a wait or a join gives up
    held_key text generated always as (
        case when key is not null and status = any (key_scope) then key end) stored,
    -- Written at the claim, for people; the lease in force is the worker's.
    lease_expires_at timestamptz,
    step             text not null,
    state            jsonb not null,
    data             jsonb,                          -- needed by the current step only
    result           jsonb,
    last_error       text,
    traceparent      text,                           -- passed from the enqueue to every step
    awaits           text[], -- the signals that its step waits for, or was woken by
    deadline_step    text, -- the step that runs when a wait or a join gives up
    deadline_data    jsonb,
    key   text, -- its key: unique while its status is in the scope, and an address
    key_scope gen_durable.durable_status[],
    -- The claim_epoch under which its step began; written only if crash_count > 0.
    begun_epoch      bigint,
    constraint instances_executing_has_worker check (
        case status when 'executing' then locked_by is not null when 'cancelled' then true else locked_by is null end),
    constraint instances_terminal_is_settled check ((status in ('done', 'failed', 'cancelled')) = (settled_at is not null)),
    constraint instances_counts_are_not_negative check (
        attempt >= 0 and failures >= 0 and crash_count >= 0 and step_seq >= step_entry_seq and children_pending >= 0),
    constraint instances_queued_is_in_a_lane check (
        (status <> 'queued' or lane_key is not null) and (not in_lane or lane_position is not null)),
    constraint instances_partition_waiting_is_runnable check (
        not partition_waiting or (status = 'runnable' and partition_key is not null))
) with (
    -- Free space for the next version of a row on its page: a run-ahead commit writes no index.
    fillfactor = 80,
    -- Vacuum by the amount of work and not by the share of the table: in a table of settled rows a
    -- share of a fifth would take too long.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 1
);

-- Pickers read a range (queue, priority) by due time. Suspects are in the next index.
create index instances_pick on gen_durable.instances (queue, priority, eligible_at, id)
    where status = 'runnable' and crash_count < 2 and not partition_waiting;
-- Suspects: instances with two crashes during their steps. A process runs one at a time.
create index instances_suspects on gen_durable.instances (queue, eligible_at, id)
    where status = 'runnable' and crash_count >= 2 and not partition_waiting;
-- The reaper reads the instances that a worker executes, and the cancelled ones until the worker
-- reports that their step has ended.
create index instances_held on gen_durable.instances (locked_by)
    where status = 'executing' or locked_by is not null;
-- The collector reads a range (queue, status) in the order of settling, since retention differs by
-- queue and by status.
create index instances_settled on gen_durable.instances (queue, status, settled_at)
    where settled_at is not null;

-- A lane in its order: the instances that wait in it, and the one that has it. An instance that has
-- left its lane is not in this index. It is by the hash of tenant and key, since comparing numbers
-- is cheaper than comparing names; each reader compares the names of the rows that it finds.
create unique index instances_lane on gen_durable.instances (lane_hash, lane_position)
    where in_lane;
-- Blocked lanes: their head has failed for good and keeps its position. One entry per blocked lane.
create index instances_blocked on gen_durable.instances (tenant, lane_key)
    where in_lane and status = 'failed';
-- The holder of a partition key. The unique index guarantees at most one, whatever the code does. A
-- cancelled instance stays the holder while its step still runs.
create unique index instances_partition_holder on gen_durable.instances (tenant, partition_key)
    where partition_key is not null and not partition_waiting and (status in ('runnable', 'executing') or locked_by is not null);
-- The instances that wait for a partition, in the order in which they are picked.
create index instances_partition_waiting on gen_durable.instances (tenant, partition_key, priority, eligible_at, id)
    where partition_waiting;
-- Instances that have drawn an arrival number: their lane or partition key has to be read by
-- `_place`.
create index instances_arrival_no on gen_durable.instances (arrival_no)
    where arrival_no is not null;

-- The key of an instance is unique among those that hold it, and is an address. Keys belong to a
-- tenant.
create unique index instances_key on gen_durable.instances (tenant, held_key)
    where held_key is not null;
-- The children of a parent, by spawn.
create index instances_children on gen_durable.instances (parent_id, parent_generation, id)
    where parent_id is not null;
-- The deadlines of waits and joins.
create index instances_deadlines on gen_durable.instances (deadline_at, id)
    where deadline_at is not null;

-- Waiting, stuck, failed and cancelled instances by id, for operators that look for them among many
-- that are done. It has no column that a run-ahead commit writes.
create index instances_aside on gen_durable.instances (status, id)
    where status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled');
