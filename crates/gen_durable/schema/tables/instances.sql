-- The sequence of arrival numbers. It has `cache 1`, so that the numbers that one producer draws
-- are in the order of its enqueues.
create sequence gen_durable.arrival_numbers cache 1;
-- The sequence of fencing tokens. A later claim of the same instance, lane or partition key has a
-- larger token, whichever worker makes the claim.
create sequence gen_durable.fencing_tokens cache 1;

-- One row per instance of a machine or a job. Columns that are never null and have a fixed width
-- come first, then the indexed columns: an update compares every indexed column of the old and the
-- new row, and to reach a column Postgres walks over all columns before it.
create table gen_durable.instances (
    id               bigint generated always as identity primary key,
    -- The fence of the instance. It grows by 1 with every claim (by a pick, or by the commit of the
    -- predecessor in a lane or under a partition key), whenever the instance leaves the status
    -- `executing`, and with every refused pick, cancel, discard and retry by an operator.
    claim_epoch      bigint not null default 0,
    -- Grows by 1 with every commit of the worker that has the claim.
    step_seq         bigint not null default 0,
    -- The step_seq at which the instance entered its current step; retries of the step do not
    -- change this column.
    step_entry_seq            bigint not null default 0,
    eligible_at      timestamptz not null default gen_durable.clock(),
    inserted_at      timestamptz not null default gen_durable.clock(),
    updated_at       timestamptz not null default gen_durable.clock(),
    machine_version      int not null default 1,
    -- How often the current step ran without progress: failures, retries that the step asked for,
    -- and crashes of the worker that ran the step.
    attempt          int not null default 0,
    -- How many of the runs in `attempt` failed. `Policy::attempts` limits this number.
    failures         int not null default 0,
    -- Grows by 1 with every spawn. The join counts only children of the last spawn.
    join_generation  int not null default 0,
    children_pending int not null default 0,
    status           gen_durable.durable_status not null default 'runnable',
    priority         smallint not null default 0,    -- lower first
    -- How many workers crashed while they had claimed the instance, since its last commit. From the
    -- second crash on, only crashes while its step ran count.
    crash_count      smallint not null default 0,
    -- The instance is runnable and waits until it becomes the holder of its partition key.
    partition_waiting        boolean not null default false,
    -- The instance has a lane position: it waits in its lane, or is the head of the lane.
    in_lane          boolean not null default false,
    -- True: if the instance settles as failed, it keeps its lane position and blocks its lane.
    lane_blocks      boolean not null default false,
    join_any         boolean not null default false, -- the first child that settles ends the join
    -- The instance is in the index `instances_fair` while it is runnable. The queue was fair when
    -- the instance was enqueued, or when a pick first read it.
    fair             boolean not null default false,
    -- The wait of the instance has repeating timers. Without them, the end of a wait costs only the
    -- comparison of this column.
    has_repeating_timers boolean not null default false,
    queue            text not null default 'default',
    tenant           text not null default '',
    machine              text not null,
    -- The worker that has claimed the instance. People and the reaper read this column; no
    -- statement uses it as a fence. For its value in a cancelled instance see `_cancel_live`.
    locked_by        uuid,
    settled_at      timestamptz,
    -- The hash of tenant and lane key: a short key of the lane for indexes.
    lane_hash        bigint generated always as (gen_durable._lane_hash(tenant, lane_key)) stored,
    lane_position    bigint,                         -- null until placement assigns it
    -- The arrival number of the instance, while `_place` still has to read its lane or partition
    -- key.
    arrival_no          bigint,
    partition_key    text,
    lane_key         text,
    -- The limits that the current step takes, each with its key (see `_limit_pairs`); null: none.
    -- The process that writes the step computes them. A claim of the instance counts in these
    -- limits.
    limit_group      text collate "C",
    parent_id        bigint, -- no foreign key: the deletion of a parent must not write its children
    parent_generation int, -- the parent's join_generation at the spawn
    deadline_at      timestamptz,                    -- when a wait or a join gives up
    held_key text generated always as (
        case when key is not null and status = any (key_scope) then key end) stored,
    -- The key of the instance, unique among instances that have a status of their key_scope. Calls
    -- address the instance by the key.
    key   text,
    -- The step at which the instance failed or got stuck. A run-ahead commit changes `step`, and
    -- leaves this column null, so the column can be in an index.
    failed_step      text generated always as (case when status in ('stuck', 'failed') then step end) stored,
    -- The group of the error of a failed or stuck instance: equal for errors that differ only in
    -- numbers and quoted names. The column is null in every other status, as `failed_step` is.
    error_group      bigint generated always as (
        case when status in ('stuck', 'failed') then gen_durable._error_group(last_error) end) stored,
    -- The end of the worker's lease at the time of the claim, for people to read. Whether the
    -- worker is alive depends on its row in `workers`, and not on this value.
    lease_expires_at timestamptz,
    step             text not null,
    state            jsonb not null,
    data             jsonb,                          -- the data of the current step
    result           jsonb,
    last_error       text,
    traceparent      text,                           -- passed from the enqueue to every step
    awaits           text[], -- the signals that its step waits for, or was woken by
    deadline_step    text, -- the step that runs when a wait or a join gives up
    deadline_data    jsonb,
    key_scope gen_durable.durable_status[],
    -- The claim_epoch under which the current step began. A worker writes this column only if
    -- crash_count > 0.
    begun_epoch      bigint,
    limit_weight     bigint,                         -- how much of a rate a start takes; null: 1
    constraint instances_executing_has_worker check (
        case status when 'executing' then locked_by is not null when 'cancelled' then true else locked_by is null end),
    constraint instances_terminal_is_settled check ((status in ('done', 'failed', 'cancelled')) = (settled_at is not null)),
    constraint instances_counts_are_not_negative check (
        attempt >= 0 and failures >= 0 and crash_count >= 0 and step_seq >= step_entry_seq and children_pending >= 0),
    constraint instances_queued_is_in_a_lane check (
        (status <> 'queued' or lane_key is not null) and (not in_lane or lane_position is not null)),
    constraint instances_partition_waiting_is_runnable check (
        not partition_waiting or (status = 'runnable' and partition_key is not null)),
    constraint instances_awaiting_limit_has_one check (status <> 'awaiting_limit' or limit_group is not null)
) with (
    -- Each page keeps free space for the next versions of its rows. An update that stays on its
    -- page, as that of a run-ahead commit, writes no index.
    fillfactor = 80,
    -- Autovacuum starts after a small share of the rows has changed. With the default of a fifth,
    -- it would start too late in a table of many settled rows, most of which never change.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 1
);

-- Pickers read a range (queue, priority) of runnable instances by due time. Suspects are in the
-- index `instances_suspects`.
create index instances_pick on gen_durable.instances (queue, priority, eligible_at, id)
    where status = 'runnable' and crash_count < 2 and not partition_waiting;
-- The runnable instances of fair queues by tenant, so that a pick reads some of each tenant however
-- many another tenant has. They are in `instances_pick` too, in which a pick finds tenants.
create index instances_fair on gen_durable.instances (queue, priority, tenant, eligible_at, id)
    where fair and status = 'runnable' and crash_count < 2 and not partition_waiting;
-- Suspects: instances with a crash_count of two or more. A worker runs one suspect at a time.
create index instances_suspects on gen_durable.instances (queue, eligible_at, id)
    where status = 'runnable' and crash_count >= 2 and not partition_waiting;
-- The reaper reads the instances that a worker executes, and cancelled instances until the worker
-- reports that their step has ended.
create index instances_held on gen_durable.instances (locked_by)
    where status = 'executing' or locked_by is not null;
-- Upkeep reads a range (queue, status) of settled instances in the order of settling and deletes
-- them, since retention differs by queue and by status.
create index instances_settled on gen_durable.instances (queue, status, settled_at)
    where settled_at is not null;

-- A lane in its order: the head and the instances that wait in the lane. An instance that has left
-- its lane is not in this index. The index is by the hash of tenant and key, since comparing
-- numbers is cheaper than comparing names. Each reader also compares tenant and key of the rows
-- that it finds, since two lanes may have the same hash.
create unique index instances_lane on gen_durable.instances (lane_hash, lane_position)
    where in_lane;
-- Blocked lanes, one entry per lane: the head has settled as failed and keeps its lane position.
create index instances_blocked on gen_durable.instances (tenant, lane_key)
    where in_lane and status = 'failed';
-- The holder of a partition key. The unique index guarantees that a key has at most one holder. A
-- cancelled instance stays the holder while its step still runs.
create unique index instances_partition_holder on gen_durable.instances (tenant, partition_key)
    where partition_key is not null and not partition_waiting
      and (status in ('runnable', 'executing', 'awaiting_limit') or locked_by is not null);
-- The instances that wait for a partition, by priority and due time: the next holder is among the
-- first.
create index instances_partition_waiting on gen_durable.instances (tenant, partition_key, priority, eligible_at, id)
    where partition_waiting;
-- Instances that have drawn an arrival number: `_place` has to read their lane or partition key.
create index instances_arrival_no on gen_durable.instances (arrival_no)
    where arrival_no is not null;

-- The claims that count in limits, by the text of all limits of the instance: one range per limit,
-- and one per limit and key.
-- A cancelled instance counts while its step still runs.
create index instances_limit_held on gen_durable.instances (limit_group)
    where limit_group is not null and (status = 'executing' or locked_by is not null);
-- The instances that wait for a limit, by the limits that they need, in the order of the picker.
create index instances_limit_waiting on gen_durable.instances (limit_group, queue, priority, eligible_at, id)
    where status = 'awaiting_limit';

-- Within a tenant, at most one instance holds a key. Calls address an instance by its key over this
-- index.
create unique index instances_key on gen_durable.instances (tenant, held_key)
    where held_key is not null;
-- The children of a parent instance, by spawn.
create index instances_children on gen_durable.instances (parent_id, parent_generation, id)
    where parent_id is not null;
-- The deadlines of waits and joins.
create index instances_deadlines on gen_durable.instances (deadline_at, id)
    where deadline_at is not null;

-- Waiting, stuck, failed and cancelled instances by id, for operators that search for them among
-- many done instances. The index has no column that a run-ahead commit changes.
create index instances_aside on gen_durable.instances (status, id)
    where status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled');

-- The four indexes below are for operators that search the whole table. Only rows with a key, of a
-- named tenant, or that have failed have entries. A run-ahead commit changes none of the columns.
-- The keys are in the order of their bytes, whatever the collation of the database is, so that a
-- prefix is a range.
create index instances_by_key on gen_durable.instances (key collate "C", id)
    where key is not null;
create index instances_by_tenant on gen_durable.instances (tenant, id)
    where tenant <> '';
create index instances_by_failed_step on gen_durable.instances (machine, failed_step, id)
    where failed_step is not null;
create index instances_by_error_group on gen_durable.instances (error_group, id)
    where error_group is not null;
