-- Generated from the files in schema/: change those, then run
-- `cargo run -p gen_durable --example baseline`.
-- Runs in psql as it is; for a schema of another name, replace the name.

-- schema/schema.sql
-- Every object of gen_durable is in this schema, and these files write its name with the schema. An
-- installation in a schema of another name replaces the name in these files (`Target::render`).
create schema gen_durable;

-- schema/types.sql
-- The status of an instance. `done`, `failed` and `cancelled` are settled; all others are live.
create type gen_durable.durable_status as enum (
    'runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'awaiting_limit', 'queued', 'stuck',
    'done', 'failed', 'cancelled'
);

-- These domains limit the lengths of names. An enqueue casts its values to these domains, and the
-- columns are plain text: every update of a row would prepare and evaluate a check constraint on
-- the table.
create domain gen_durable.name as text
    constraint name_has_1_to_200_bytes check (octet_length(value) between 1 and 200);
create domain gen_durable.queue_name as text
    constraint queue_has_1_to_63_bytes check (octet_length(value) between 1 and 63);
create domain gen_durable.tenant_name as text
    constraint tenant_has_at_most_200_bytes check (octet_length(value) <= 200);
create domain gen_durable.key_name as text
    constraint key_has_1_to_512_bytes check (octet_length(value) between 1 and 512);

-- The row type that `_pick`, `_promote_successors` and `_write_keyed_step_results` return: an
-- instance that the calling worker may run now. A row without an id, or without a step, carries
-- information about the batch instead.
create type gen_durable.claimed as (
    id          bigint,
    machine         text,
    machine_version int,
    step        text,
    data        text,        -- in a row of `_pick` without an id: reports of `_fair_candidates`
    state       text,
    attempt     int,
    claim_epoch bigint,
    step_seq    bigint,
    step_entry_seq       bigint,
    queue       text,
    priority    smallint,
    eligible_at timestamptz, -- in a row without an id: the time of the database
    tenant      text,
    traceparent text,
    keyed       boolean,     -- the instance has a lane or a partition key
    crash_count smallint,
    next_due    timestamptz, -- `_pick`, in the row without an id: when the next instance falls due
    paused      text[],      -- `_pick`, in the row without an id: the paused queues
    awaits      text[],
    inbox       text,
    children    text,
    parent_id   bigint,
    -- The instance that ran before in the lane or partition. In the last row of `_pick`: the result
    -- of `_place_arrivals`.
    predecessor_id    bigint,
    -- In the row without an id of `_write_keyed_step_results`: the instances with a written result.
    -- In the last row of `_pick`: the sum of `queues.fair_version`.
    marks       bigint[],
    failures    int,
    token       bigint,      -- the fencing token of this claim
    -- `_pick`, in the row without an id: see `_fleet`.
    fleet       int[],
    limit_group text,        -- the limits that the claim counts in
    -- The instance had the status `awaiting_limit`. In a row without an id before the last one: the
    -- pick did not read all instances that are due, or left some that it read.
    waited      boolean
);

-- schema/functions/clock.sql
-- Returns the time with which all due times are compared. In production this is the time of the
-- statement. The function is STABLE, so that a comparison with it stays an index condition. A test
-- schema replaces the body with a clock that tests move by hand. Leases do not use this function
-- but the real time.
--   called by: every statement that compares or writes a due time
--   index: none      locks: nothing
create function gen_durable.clock() returns timestamptz
    language sql stable parallel safe
    as 'select statement_timestamp()';

-- schema/functions/_due.sql
-- Returns when an instance is due: at a date, or after a delay in seconds. A date in the past
-- becomes now, so that no row appears behind the point up to which a picker has read. A delay is at
-- most a hundred years, and a date is at most the last that a client can read (dates in Rust end
-- with the year 9999): a row with a later date would make every query that returns it fail.
--   called by: enqueue_all, _enqueue_keyed, store::enqueue      index: none      locks: nothing
create function gen_durable._due(p_at timestamptz, p_delay float8) returns timestamptz
    language sql stable parallel safe
    as $$
        select least(greatest(coalesce(p_at, gen_durable.clock() + make_interval(secs => least(coalesce(p_delay, 0), 3162240000))),
            gen_durable.clock()), timestamptz '9999-12-30 22:00:00+00')
    $$;

-- schema/functions/_lane_hash.sql
-- Returns the hash of a lane's tenant and key, which indexes contain in place of the names.
--   called by: the generated column instances.lane_hash, every scan of a lane
--   index: none      locks: nothing
create function gen_durable._lane_hash(p_tenant text, p_key text) returns bigint
    language sql immutable parallel safe
    as 'select hashtextextended(p_key, hashtextextended(p_tenant, 0))';

-- schema/functions/_error_fingerprint.sql
-- Returns the fingerprint of an error: the beginning of its text, without the numbers and the
-- quoted names that differ from one instance to another. The fingerprint of a fingerprint is
-- itself.
--   called by: _error_group, failure_groups.sql      index: none      locks: nothing
-- Each word with a digit, each long hexadecimal word, and each group of these becomes `#`, and each
-- quoted name becomes `…`. The patterns contain only ASCII, so the result does not depend on the
-- collation of the database.
create function gen_durable._error_fingerprint(p_error text) returns text
    language sql immutable parallel safe
    as $$
select btrim(left(regexp_replace(regexp_replace(regexp_replace(left(p_error, 500),
    '"[^"]*"|`[^`]*`', '…', 'g'),
    '[A-Za-z]*[0-9][A-Za-z0-9]*|[A-Fa-f]{8,}|[A-Fa-f0-9]{8}-[A-Fa-f0-9]{4}-[A-Fa-f0-9]{4}-[A-Fa-f0-9]{4}-[A-Fa-f0-9]{12}', '#', 'g'),
    '#([-.:]#)+', '#', 'g'), 200))
$$;

-- schema/functions/_error_group.sql
-- Returns the number of the group of an error: the hash of its fingerprint.
--   called by: the generated column instances.error_group, _error_group_of
--   index: none      locks: nothing
create function gen_durable._error_group(p_error text) returns bigint
    language sql immutable parallel safe
    as $$select hashtextextended(coalesce(gen_durable._error_fingerprint(p_error), ''), 0)$$;

-- schema/tables/migrations.sql
create table gen_durable.migrations (
    version       int primary key,
    name          text not null,
    -- Builds that were made for this schema version or a later one work with this schema.
    oldest_served int not null,
    installed_at  timestamptz not null default statement_timestamp()
);

-- schema/tables/installation.sql
-- The identity of this installation: a random name with which idempotency keys begin, since
-- instance ids begin at 1 in every schema. A restored database keeps the name. For a copy that
-- becomes another installation, an operator sets a new name with an update.
create table gen_durable.installation (
    one boolean primary key default true check (one),
    id  text not null default left(replace(gen_random_uuid()::text, '-', ''), 16)
);
insert into gen_durable.installation default values;

-- schema/tables/instances.sql
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

-- schema/tables/signals.sql
-- The inboxes of instances. A signal stays until a step that has received it commits progress. A
-- signal with a dedup key then stays without its payload, so that the same signal is not delivered
-- twice; upkeep deletes the row after its retention.
create table gen_durable.signals (
    id          bigint generated always as identity primary key,
    -- There is no foreign key, since its check would lock the target for each signal, and its
    -- cascade would need an index on all signals.
    target_id   bigint not null,
    inserted_at timestamptz not null default gen_durable.clock(),
    consumed_at timestamptz,
    name        text not null,
    dedup_key   text,
    payload     jsonb not null,
    -- The size of the payload as a step receives it. `signal` limits the sum of an inbox.
    bytes       int generated always as (octet_length(payload::text)) stored,
    constraint signals_names_have_a_length check (octet_length(name) between 1 and 200 and octet_length(dedup_key) <= 512),
    -- Every row is in at least one of the two indexes on target_id. A trigger on `instances` uses
    -- these indexes to delete the signals of a deleted instance.
    constraint signals_consumed_has_a_dedup_key check (consumed_at is null or dedup_key is not null)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);

create index signals_inbox on gen_durable.signals (target_id, id) where consumed_at is null;
create unique index signals_dedup on gen_durable.signals (target_id, dedup_key) where dedup_key is not null;
-- Upkeep reads consumed signals, which are kept for their dedup keys, by the time of consumption,
-- and deletes them.
create index signals_consumed on gen_durable.signals (consumed_at) where consumed_at is not null;

-- schema/tables/history.sql
-- The history of instances: one row per change. The rows of an instance are ordered by (step_seq,
-- claim_epoch): every recorded change raises one of the two, so no two rows have the same pair.
-- There is no foreign key, since its check would read the instance for each row of every commit. A
-- trigger on `instances` deletes the history of a deleted instance.
create table gen_durable.history (
    instance_id  bigint not null,
    step_seq     bigint not null,                    -- of the instance, after the change
    claim_epoch  bigint not null,                    -- of the instance, after the change
    at           timestamptz not null,
    woken_at     timestamptz, -- when a wait or a join ended, or a stuck instance became runnable
    took_seconds real,                               -- how long the step ran; null if no step ran
    attempt      int not null,                       -- earlier runs of the step without progress
    status       gen_durable.durable_status not null,
    -- The kind of change. Step results: next, sleep, wait, spawn, retry, failure, done, fail,
    -- outage, stuck. Changes from outside the step: deadline, reap, cancel, operator_retry.
    outcome      text not null,
    from_step    text not null,
    to_step      text not null,
    error        text,
    cause        text, -- the cause of `woken_at`: 'signal paid', 'children', 'another build'
    worker       text, -- host/pid of the worker that ran the step or crashed in the step
    primary key (instance_id, step_seq, claim_epoch)
) with (
    -- When a wait ends, `_record_wakes` updates the history row of the wait. The free space on the
    -- page lets the new version of the row stay on the same page, so that the update writes no
    -- index.
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.1
);

-- schema/tables/workers.sql
-- One row per worker, a process that runs steps. The lease of a worker covers all its claims.
create table gen_durable.workers (
    id               uuid primary key,
    lease_expires_at timestamptz not null,
    -- Since when the lease of the worker has been valid without a gap.
    started_at       timestamptz not null default statement_timestamp(),
    renewed_at       timestamptz not null default statement_timestamp(),
    host             text not null,
    pid              int not null,
    queues           text[] not null,
    machines         text[] not null,                -- 'name/version' of each machine
    -- 'machine/version/step' of each step that the worker knows: see `_knows_step`.
    steps            text[] not null default '{}',
    -- The schedules that the worker has registered. A schedule that no live worker has registered
    -- starts no instances; pages still list it.
    schedules        text[] not null default '{}',
    -- The projections that the worker has registered. A request for a run reports whether a live
    -- worker can execute the run.
    projections      text[] not null default '{}',
    -- Whether the worker has room for instances and shares the polls of its group: see `_fleet`.
    polls            boolean not null default true,
    -- When the worker last found an instance, to about a second: see `_fleet`.
    found_work_at    timestamptz not null default statement_timestamp(),
    version          text not null default '',       -- of gen_durable in the worker's build
    connections_max  int not null default 0,         -- the most connections that the worker opens
    draining         boolean not null default false  -- the worker stops: it claims no instances
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

-- schema/tables/queues.sql
-- Settings of a queue. A queue without a row is not paused.
create table gen_durable.queues (
    name         text primary key,
    paused_at    timestamptz,
    paused_by    text,
    -- How many seconds settled instances of this queue are kept. An engine that declares a
    -- retention writes it, and the upkeep of all engines uses it. Null: the settings of the engine
    -- that deletes the instances apply. Infinity: upkeep never deletes the instances.
    retention        float8,                         -- of done instances
    failed_retention float8,                         -- of failed and cancelled instances
    -- The tenants of a fair queue share the workers: see `_fair_candidates`. An engine declares it.
    fair             boolean not null default false,
    -- When an operator changed `fair`. The declaration of a starting worker then leaves it.
    fair_changed_at  timestamptz,
    -- The shares of tenants other than 1: how many instances of the tenant begin while one instance
    -- of a tenant with a share of 1 begins.
    tenant_shares    jsonb not null default '{}',
    -- Grows with every change of `fair` or `tenant_shares`. Pickers read the columns again when the
    -- sum over their queues has changed.
    fair_version     bigint not null default 0
);
create index queues_fair on gen_durable.queues (name) where fair;

-- schema/tables/collect_cursors.sql
-- Cursors of the collector, which deletes settled instances: how far it has read each range (queue,
-- status) of the index `instances_settled`. All workers share these rows, so that they read an
-- instance that is kept beyond its retention (a child that its parent may still read) once per
-- pass, and not in each worker each minute.
create table gen_durable.collect_cursors (
    queue         text not null,
    status        gen_durable.durable_status not null,
    -- Upkeep has examined all instances of the range (queue, status) that settled before this time.
    at            timestamptz not null default '-infinity',
    -- How many instances that settled exactly at `at` upkeep has examined and kept.
    kept_at       bigint not null default 0,
    examined      bigint not null default 0,         -- instances examined in this pass
    pass_began_at timestamptz not null default gen_durable.clock(),
    primary key (queue, status)
) with (fillfactor = 50);

-- schema/tables/lanes.sql
-- Numbers the rounds of placement. A lane position is (round << 20) + the rank of the instance in
-- the round.
create sequence gen_durable.placement_rounds cache 1;

-- One row per lane. The row is the lock of the lane: every transaction that assigns a position in
-- the lane, or settles its last instance, holds it. No instance in the lane has a position at or
-- below `floor`, so scans of the lane begin after `floor`.
create table gen_durable.lanes (
    tenant text not null,
    key    text not null,
    floor  bigint not null default 0,
    primary key (tenant, key)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);

-- schema/tables/partition_cursors.sql
-- Partition cursors: no instance that waits for this partition is before (priority, at, id), so
-- scans begin there. Without a row, scans begin at the first waiting instance.
-- `_promote_successors` raises a cursor after one ended step in twenty, and `_assign_partition`
-- lowers the cursor for an instance that arrives before it. Both hold the lock of the partition
-- holder's row. The holder is never before the cursor: it was a waiting instance when the cursor
-- was raised last, and when it ends a step it waits behind all others again.
create table gen_durable.partition_cursors (
    tenant   text not null,
    key      text not null,
    priority smallint not null,
    at       timestamptz not null,
    id       bigint not null,
    primary key (tenant, key)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);

-- schema/tables/placement_lock.sql
-- The placement lock: a transaction that assigns lane positions or chooses partition holders locks
-- this row, for the duration of one statement.
create table gen_durable.placement_lock (one boolean primary key default true check (one));
insert into gen_durable.placement_lock default values;

-- schema/tables/placement_watermarks.sql
-- The watermark of placement: up to which arrival number the instances have been placed, see
-- `_place_new`. The row with the largest n is valid. A change inserts a row and deletes the
-- previous row, and readers read the index backwards from its end. An update of one row would leave
-- a dead version each time, and each pick would read all dead versions while an open transaction
-- prevents the vacuum.
create table gen_durable.placement_watermarks (
    n            bigint generated always as identity primary key,
    -- Instances with arrival numbers up to `placed_to` are placed, except instances of the
    -- transactions in `open_xids`.
    placed_to    bigint not null default 0,
    -- The last arrival number that any transaction had drawn just before a placement wrote this
    -- row.
    drawn        bigint not null default 0,
    -- A transaction id: every transaction that drew arrival numbers up to `drawn` has a smaller id.
    drawn_before xid8 not null default '0',
    -- Transactions that were open when `placed_to` rose above arrival numbers that they may have
    -- drawn.
    open_xids    xid8[] not null default '{}',
    -- For each transaction in `open_xids`: its arrival numbers are larger than this number.
    open_since   bigint[] not null default '{}',
    -- When `_repair` next reads all arrival numbers, from the first one.
    sweep_due_at timestamptz not null default '-infinity'
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);
insert into gen_durable.placement_watermarks default values;

-- schema/tables/limits.sql
-- One row per named limit: its bounds. A limit counts the claims of instances with a step that
-- takes it.
create table gen_durable.limits (
    name         text primary key check (octet_length(name) between 1 and 200 and name !~ '[\x01-\x1f]'),
    at_once      int check (at_once >= 0),      -- claims at the same time; null: no bound
    per_key      int check (per_key >= 0),      -- claims at the same time with the same key
    -- A rate allows this weight per period (in seconds), and as much as `burst` at once.
    rate         float8 check (rate > 0),
    period       float8 check (period > 0),
    burst        float8 check (burst > 0),
    key_rate     float8 check (key_rate > 0),   -- the same for each key
    key_period   float8 check (key_period > 0),
    key_burst    float8 check (key_burst > 0),
    -- The bounds that the code declares, as the columns above. An operator's change keeps them, so
    -- that a reset finds them.
    declared     jsonb not null default '{}',
    -- When an operator changed the bounds. The declaration of a starting worker then leaves them.
    changed_at   timestamptz,
    paused_at    timestamptz,                   -- while this is set, no step that takes the limit begins
    closed_until timestamptz,                   -- a step closed the limit until then
    constraint limits_rate_is_complete check (
        (rate is null) = (period is null) and (rate is null) = (burst is null)
        and (key_rate is null) = (key_period is null) and (key_rate is null) = (key_burst is null))
);

-- The bounds of chosen keys, which replace `per_key` and `key_rate` of the limit. Null: as the
-- limit has it.
create table gen_durable.limit_keys (
    name       text not null,
    key        text not null,
    at_once    int check (at_once >= 0),
    rate       float8 check (rate > 0),
    period     float8 check (period > 0),
    burst      float8 check (burst > 0),
    primary key (name, key),
    constraint limit_keys_rate_is_complete check ((rate is null) = (period is null) and (rate is null) = (burst is null))
);

-- The locks of the limits. A pick locks the row of a limit before it counts the claims in it, so
-- that no two picks count at the same time. Operators change rows of `limits`, and never block a
-- pick.
create table gen_durable.limit_locks (
    name       text primary key,
    -- No more claims than this count in the limit. The last pick that counted them wrote it, and
    -- each pick since has added its own; claims that have ended since are still in it. While it is
    -- below the bound, picks need not count. Null: unknown.
    claims_max bigint
) with (fillfactor = 50);

-- The tokens of rates: `tokens` were left at `at`. The row with the key '' is the rate of the whole
-- limit. A rate without a row is full.
create table gen_durable.limit_tokens (
    name   text not null,
    key    text not null,
    tokens float8 not null,
    at     timestamptz not null,
    primary key (name, key)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- The second and further limits of claimed instances. The first one is the beginning of
-- `instances.limit_group`, and `instances_limit_held` counts it. A row counts while the instance
-- has this claim: the end of a claim writes nothing here, and a later pick deletes the row.
create table gen_durable.limit_holds (
    name        text not null,
    key         text not null,
    instance_id bigint not null,
    claim_epoch bigint not null,
    primary key (name, key, instance_id)
);

-- The groups with instances in the status `awaiting_limit`, by queue. Only a pick that has locked
-- the limits of a group inserts, serves or deletes its row.
create table gen_durable.limit_backlog (
    limit_group text collate "C" not null,
    queue       text not null,
    names       text[] not null,
    -- When a pick tries the group again: at most a minute after it tried the group last. Groups
    -- take turns in this order.
    ready_at    timestamptz not null default gen_durable.clock(),
    -- The bound that had no room left: `name`, or `name\1key`. A worker that has ended a claim
    -- in it tries the group at once. Null: the group waits for tokens, or has not been tried yet.
    held_on     text collate "C",
    primary key (limit_group, queue)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
create index limit_backlog_ready on gen_durable.limit_backlog (queue, ready_at);
create index limit_backlog_held on gen_durable.limit_backlog (held_on, ready_at) where held_on is not null;

-- schema/tables/schedules.sql
-- A schedule: a named cycle that enqueues instances. The columns code_* hold the cycle that the
-- code registers. `cycle` and `missed` hold the cycle in force, which an operator may have set.
-- When the code registers another cycle, that cycle comes into force.
create table gen_durable.schedules (
    name          text primary key,
    cycle         text not null,
    missed        text not null,
    code_cycle    text not null,
    code_missed   text not null,
    -- Earlier cycles of the code, the latest first. An older build may still register one of them.
    code_replaced text[] not null default '{}',
    -- Since when only older builds have registered the schedule, with an earlier cycle.
    challenged_at timestamptz,
    anchor_at     timestamptz not null, -- the start of a cycle that has no start of its own
    registered_at timestamptz not null default gen_durable.clock(),
    set_at        timestamptz,                       -- when an operator set the cycle
    set_by        text,
    paused_at     timestamptz,
    paused_by     text,
    ended_at      timestamptz,                       -- the cycle has no further occurrence
    remaining     int, -- while the schedule is paused: how many occurrences may follow the next one
    last_error    text, -- why the last occurrence did not start an instance
    constraint schedules_names_have_a_length check (octet_length(name) between 1 and 200 and octet_length(cycle) <= 1000),
    constraint schedules_have_a_policy check (missed in ('all', 'latest', 'skip') and code_missed in ('all', 'latest', 'skip'))
);

-- schema/tables/timers.sql
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

-- schema/tables/event_heads.sql
-- One row per tenant with events: the lock of the tenant's log. Transactions lock the row and never
-- update it: an update for every event would leave a dead version of the row, and each append would
-- read those versions while any transaction holds an old snapshot. The last position of a log is
-- read from the end of the index `events_log`.
create table gen_durable.event_heads (
    tenant text primary key,
    constraint event_heads_names_have_a_length check (octet_length(tenant) <= 200)
);

-- schema/tables/events.sql
create table gen_durable.events (
    arrival_no     bigint generated always as identity primary key,
    position    bigint,                              -- null until a position is assigned
    at          timestamptz not null default gen_durable.clock(),
    -- The instance that recorded the event; no foreign key, since events stay when instances are
    -- deleted.
    instance_id bigint,
    xid         xid8, -- the transaction that recorded the event without a position
    version     int not null default 1,
    tenant      text not null default '',
    name        text not null,
    step        text,                                -- the step that recorded the event
    payload     jsonb not null,
    headers     jsonb,
    constraint events_names_have_a_length check (octet_length(tenant) <= 200 and octet_length(name) between 1 and 200),
    constraint events_positions_begin_at_one check (position > 0)
) with (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 1
);

-- The log of a tenant in its order. Two events never have the same position.
create unique index events_log on gen_durable.events (tenant, position) where position is not null;
-- Events without a log position: the first index is by tenant, the second over all tenants.
create index events_unplaced on gen_durable.events (tenant, xid, arrival_no) where position is null;
create index events_unplaced_all on gen_durable.events (xid) where position is null;
-- Indexes of events by the instance that recorded them, and by event name.
create index events_instance on gen_durable.events (instance_id, arrival_no) where instance_id is not null;
create index events_name on gen_durable.events (tenant, name, position) where position is not null;

-- schema/tables/event_scans.sql
-- The snapshot of the last scan for events of a tenant that have no position. That scan read every
-- event that was committed before the snapshot. The next scan reads only events of transactions
-- that are newer than the snapshot or were open in it, and skips dead index entries of events that
-- have got their position since. The row with the largest n is valid. The row only saves work: a
-- scan from the beginning finds all events.
create table gen_durable.event_scans (
    n      bigint generated always as identity,
    tenant text not null,
    looked pg_snapshot not null,
    primary key (tenant, n)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- schema/tables/log_walks.sql
-- Passes over the logs of all tenants, in pages. One worker at a time reads a page, and the pages
-- of all workers together are one pass, so how often a tenant is read does not depend on the number
-- of workers. The pass `trim` deletes old events. The pass `behind` finds projections that have not
-- read the end of a log; there is one for each version of a projection.
create table gen_durable.log_walks (
    walk         text not null,                      -- behind, trim
    projection   text not null default '',
    version      int not null default 0,
    after_tenant text, -- the end of the last page; null: the next page is the first
    due_at       timestamptz not null default statement_timestamp(),
    primary key (walk, projection, version)
);

-- schema/tables/projections.sql
-- One row per scope (one projection over the log of one tenant): its position in the log, its owner
-- and its last error.
create table gen_durable.projections (
    tenant          text not null,
    projection      text not null,
    -- A stable hash of tenant and projection. The length of the tenant's name is hashed too, so
    -- that ('a', 'bc') differs from ('ab', 'c').
    partition       int generated always as (
        ('x' || substr(md5(octet_length(tenant) || ':' || tenant || projection), 1, 8))::bit(32)::int & 1023) stored,
    version         int not null,                    -- version of the code that wrote the rows
    offered         int, -- the newest version of the code for which a rebuild is due
    generation      int not null default 1,          -- the generation of the rows that readers see
    position        bigint not null default 0, -- the last event that was applied to these rows
    applied         bigint not null default 0,       -- a running hash of all applied events
    -- During a rebuild in place: the position that the scope had reached before the rebuild.
    replaying_to    bigint not null default 0,
    status          text not null default 'running',
    attempts        int not null default 0, -- failed attempts of the event after `position`
    retry_at        timestamptz,
    last_error      text,
    -- The worker that applies events to the scope. The column is a hint: until `owned_until`, other
    -- workers do not apply events to the scope.
    owner           uuid,
    owned_until     timestamptz,
    updated_at      timestamptz not null default gen_durable.clock(),
    digest          bytea,                           -- the last computed digest of the rows
    digest_position bigint,
    digest_at       timestamptz,
    primary key (tenant, projection),
    constraint projections_statuses check (status in ('running', 'retrying', 'halted')),
    constraint projections_names_have_a_length check (
        octet_length(tenant) <= 200 and octet_length(projection) between 1 and 200)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- Serves pages of the scopes of one projection, and pages of all scopes by projection.
create index projections_by_name on gen_durable.projections (projection, tenant);

-- Scopes that a worker has to retry at `retry_at`. They are few, and this index finds them at a
-- cost that does not depend on the number of scopes.
create index projections_retry on gen_durable.projections (retry_at) where retry_at is not null;

-- schema/tables/projection_runs.sql
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

-- schema/tables/projection_failures.sql
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

-- schema/tables/projection_run_failures.sql
-- Events that a run could not apply and has skipped. When the rows of a shadow rebuild become the
-- rows that readers see, these events become parked events of the scope.
create table gen_durable.projection_run_failures (
    run_id   bigint not null references gen_durable.projection_runs (id) on delete cascade,
    position bigint not null,
    error    text not null,
    primary key (run_id, position)
);

-- schema/tables/audit.sql
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

-- schema/tables/bulk_actions.sql
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

-- schema/tables/rollups.sql
-- Rollups: step results counted by machine and queue, in buckets of a minute, ten minutes and an
-- hour. Workers count in memory and add their counts every few seconds (see `_add_rollups`), so a
-- commit of step results neither reads nor writes this table.
create table gen_durable.rollups (
    seconds    int not null,                         -- the length of the bucket: 60, 600 or 3600
    bucket     timestamptz not null,                 -- the begin of the bucket
    -- Both are empty in the row of all pairs beyond the limit of a bucket.
    machine    text not null,
    queue      text not null,
    steps      bigint not null,                      -- committed results of steps
    failures   bigint not null,                      -- of these, runs that failed
    done       bigint not null,                      -- instances that became done by a step
    failed     bigint not null,                      -- instances that became failed by a step
    -- Histograms with the same classes (see `Rollup::BOUNDS_MS`): the time from the due time of an
    -- instance to the begin of its step, for each claim; and the durations of the steps.
    queue_time bigint[] not null,
    duration   bigint[] not null,
    primary key (seconds, bucket, machine, queue)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.1);

-- The last batch of counts that each worker has added: see `_add_rollups`.
create table gen_durable.rollup_writers (
    worker_id uuid primary key,
    batch     bigint not null,
    added_at  timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0.1);

-- The rollup lock: a transaction that adds counts locks this row.
create table gen_durable.rollup_lock (one boolean primary key default true check (one));
insert into gen_durable.rollup_lock default values;

-- schema/functions/_is_read_committed.sql
-- Returns whether this transaction is at read committed, where every statement sees the rows that
-- were committed before the statement. A function that has waited for a lock then reads rows that
-- other transactions committed before it got the lock: a signal, or the successor in a lane. At
-- another isolation level the function would not find these rows.
--   called by: _require_read_committed, _lanes_at_once, _write_step_results_with_effects, _cancel_live
--   index: none      locks: nothing
create function gen_durable._is_read_committed() returns boolean
    language sql stable
    as $$ select current_setting('transaction_isolation') in ('read committed', 'read uncommitted') $$;

-- schema/functions/_require_read_committed.sql
-- Raises an error unless the transaction is at read committed.
--   called by: _pick, _write_step_results
--   index: none      locks: nothing
create function gen_durable._require_read_committed() returns void
    language plpgsql
    as $$
begin
    if not gen_durable._is_read_committed() then
        raise exception 'gen_durable needs the isolation level read committed, and this transaction is at %: alter role % set default_transaction_isolation = ''read committed''',
            current_setting('transaction_isolation'), quote_ident(session_user)
            using errcode = 'invalid_transaction_state';
    end if;
end $$;

-- schema/functions/key_scope.sql
-- Returns the statuses in which an instance holds its key.
--   called by: _enqueue_keyed      index: none      locks: nothing
create function gen_durable.key_scope(p_scope text) returns gen_durable.durable_status[]
language plpgsql immutable
as $$
begin
    case coalesce(p_scope, 'live')
        when 'live' then return array['runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'awaiting_limit', 'queued', 'stuck']::gen_durable.durable_status[];
        when 'ever' then return enum_range(null::gen_durable.durable_status);
        when 'none' then return '{}'::gen_durable.durable_status[];
        else raise exception 'unknown scope %: a key is held while its instance is live, ever, or none', p_scope
            using errcode = 'invalid_parameter_value';
    end case;
end $$;

-- schema/functions/_knows_step.sql
-- Returns whether a worker that knows the steps p_known can run an instance at the step p_step.
-- Entries of p_known are 'machine/version/step'. An entry 'machine/version' stands for every step
-- of that version: the worker upgrades such rows, and the machine's `upgrade` decides about their
-- steps.
--   called by: _pick, _pick_suspect, _set_aside_refused, _claim_successors,
--   store::queue::stuck_page, store::inspect, store::explain
--   index: none      locks: nothing
-- The function is STABLE and has no SET clause, so that the planner inlines it: a call per row
-- would cost more than the comparison.
create function gen_durable._knows_step(p_known text[], p_machine text, p_version int, p_step text) returns boolean
    language sql stable
    as $$ select p_machine || '/' || p_version || '/' || p_step = any (p_known) or p_machine || '/' || p_version = any (p_known) $$;

-- schema/functions/_inbox_bytes_max.sql
-- Returns how many bytes of payload the inbox of an instance may hold. `signal` rejects a signal
-- that would exceed this number.
--   called by: signal      index: none      locks: nothing
create function gen_durable._inbox_bytes_max() returns bigint
    language sql immutable parallel safe
    as 'select 8 * 1024 * 1024::bigint';

-- schema/functions/_inbox_of.sql
-- Returns the inbox of an instance as JSON: [[id, name, payload], ...], the oldest signal first;
-- null if the inbox is empty. `_pick` and `_write_step_results` repeat this expression and do not
-- call the function: a function call per row costs more than the read.
--   called by: _pick_suspect, _set_aside_refused, _write_step_results_with_effects, inputs.sql
--   index: signals_inbox      locks: nothing
create function gen_durable._inbox_of(p_id bigint) returns text
    language sql stable
    as $$
        select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
        from gen_durable.signals s
        where s.target_id = p_id and s.consumed_at is null
    $$;

-- schema/functions/_children_of.sql
-- Returns a page of the children of one spawn as JSON, in the order of the spawn: {"more": ...,
-- "children": [...]}. The page ends after 1,000 children or before the child that would exceed 8
-- MiB; it has at least one child. `more` is true if the spawn has further children.
--   called by: _pick, _pick_suspect, _set_aside_refused, _write_step_results, _claim_successors,
--   _write_step_results_with_effects, store::family::page
--   index: instances_children
--   locks: nothing
create function gen_durable._children_of(p_id bigint, p_generation int, p_after bigint default 0, p_machines text[] default null)
returns text
language plpgsql stable
as $$
-- planner: pinned
declare
    child record;
    one text;
    page text[] := '{}';
    bytes bigint := 0;
    more boolean := false;
begin
    -- Reads the children row by row, so that values beyond the end of the page are never read from
    -- their TOAST table.
    for child in
        select c.id, c.machine, c.status, c.state, c.result, c.last_error, c.attempt, c.failures
        from gen_durable.instances c
        where c.parent_id = p_id and c.parent_generation = p_generation and c.id > p_after
          and (p_machines is null or c.machine = any (p_machines))
        order by c.id
        limit 1001
    loop
        one := concat('{"id": ', child.id, ', "machine": ', to_json(child.machine), ', "status": "', child.status, '", "state": ', child.state,
            ', "result": ', coalesce(child.result::text, 'null'), ', "error": ', coalesce(to_json(child.last_error)::text, 'null'),
            ', "attempt": ', child.attempt, ', "failures": ', child.failures, '}');
        bytes := bytes + octet_length(one);
        more := cardinality(page) = 1000 or (bytes > 8 * 1024 * 1024 and cardinality(page) > 0);
        exit when more;
        page := page || one;
    end loop;
    return concat('{"more": ', more::text, ', "children": [', array_to_string(page, ', '), ']}');
end $$;

-- schema/functions/result.sql
-- Returns the status of an instance, its result, and its last error; no row if the instance does
-- not exist.
--   called by: SQL      index: instances_pkey
--   locks: nothing
create function gen_durable.result(id bigint) returns table (status text, result jsonb, error text)
language sql stable
set search_path = gen_durable, pg_temp
as $$
    select i.status::text, i.result, i.last_error from gen_durable.instances i where i.id = $1
$$;

-- schema/functions/_history_page.sql
-- Returns a page of the history of an instance before (p_seq, p_epoch), the newest row first.
-- Sorting is off, since without statistics the planner expects few rows per instance, and would
-- read and sort the whole history of the instance for one page.
--   called by: store::history::Inspect::history      index: history_pkey, backwards
--   locks: nothing
create function gen_durable._history_page(p_id bigint, p_seq bigint, p_epoch bigint, p_limit int)
returns setof gen_durable.history
language plpgsql stable
set enable_sort = off
as $$
-- planner: pinned
begin
    return query
    select t.* from gen_durable.history t
    where t.instance_id = p_id and (t.step_seq, t.claim_epoch) < (p_seq, p_epoch)
    order by t.step_seq desc, t.claim_epoch desc
    limit p_limit;
end $$;

-- schema/functions/_first_id_at.sql
-- Returns an id below which all instances were inserted before p_at, by a binary search over the
-- ids: ids are drawn in the order of time, and `inserted_at` is the time at which the statement of
-- an instance began. A statement that takes long inserts instances with larger ids than others of
-- their time, so a caller adds the duration of the longest statement to p_at.
--   called by: search_period.sql      index: instances_pkey
--   locks: nothing
create function gen_durable._first_id_at(p_at timestamptz) returns bigint
language plpgsql stable
as $$
-- planner: pinned
declare
    low bigint;   -- all instances up to this id are older than p_at
    high bigint;  -- no instance from this id on is older than p_at
    middle bigint;
    probed record;
begin
    select coalesce(min(i.id), 1) - 1, coalesce(max(i.id), 0) + 1 into low, high from gen_durable.instances i;
    while low + 1 < high loop
        middle := low + (high - low) / 2;
        select i.id, i.inserted_at into probed
        from gen_durable.instances i where i.id >= middle and i.id < high order by i.id limit 1;
        if found and probed.inserted_at < p_at then
            low := probed.id;
        else
            high := middle;
        end if;
    end loop;
    return high;
end $$;

-- schema/functions/_error_group_of.sql
-- Returns the number of the group of errors that a condition names: by `like:` and the id of a
-- failed or stuck instance, or by the text of an error or of a fingerprint. Returns null if there
-- is no such instance, or no condition.
--   called by: _search_floor, _search_rows, bulk_begin.sql      index: instances_pkey      locks: nothing
create function gen_durable._error_group_of(p_condition text) returns bigint
    language sql stable
    as $$
select case when p_condition is null then null
            when p_condition ~ '^like:[0-9]{1,18}$' then (select i.error_group from gen_durable.instances i where i.id = substr(p_condition, 6)::bigint)
            else gen_durable._error_group(p_condition) end
$$;

-- schema/functions/_search_range.sql
-- Returns the condition and the order with which a search reads instances by an index. In both, $1
-- is the id below which the search reads, $2 its lowest id, $4 the machine, $6 the status, $7 the
-- step, $9 the tenant, $10 the key, $11 the prefix of a key, $17 the text after all such keys and
-- $18 the number of the group of errors. The conditions compare rows and the order begins with the
-- columns of the index, so that no other index has the order.
--   called by: _search_floor, _search_rows, _bulk_page      index: none      locks: nothing
create function gen_durable._search_range(p_index text) returns text[]
language sql immutable parallel safe
as $$
select case p_index
    when 'id' then array['i.id >= $2 and i.id < $1', 'i.id desc']
    when 'status' then array[
        $q$i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
           and (i.status, i.id) >= ($6::gen_durable.durable_status, $2) and (i.status, i.id) < ($6::gen_durable.durable_status, $1)$q$,
        'i.status desc, i.id desc']
    when 'tenant' then array[
        $q$i.tenant <> '' and (i.tenant, i.id) >= ($9, $2) and (i.tenant, i.id) < ($9, $1)$q$,
        'i.tenant desc, i.id desc']
    when 'failed_step' then array[
        $q$i.failed_step is not null and (i.machine, i.failed_step, i.id) >= ($4, $7, $2)
           and (i.machine, i.failed_step, i.id) < ($4, $7, $1)$q$,
        'i.machine desc, i.failed_step desc, i.id desc']
    when 'error_group' then array[
        $q$i.error_group is not null and (i.error_group, i.id) >= ($18, $2) and (i.error_group, i.id) < ($18, $1)$q$,
        'i.error_group desc, i.id desc']
    when 'key' then array[
        $q$i.key is not null and (i.key collate "C", i.id) >= ($10, $2) and (i.key collate "C", i.id) < ($10, $1)$q$,
        'i.key collate "C" desc, i.id desc']
    when 'prefix' then array[
        $q$i.key is not null and i.key collate "C" >= $11 and i.key collate "C" < $17 and i.id >= $2 and i.id < $1$q$,
        'i.key collate "C"']
    end
$$;

-- schema/functions/_search_floor.sql
-- Returns the id to which the first p_limit instances reach that a search reads by an index: the
-- lowest one, or the highest one if the search begins with the oldest. Also returns the number of
-- these instances. The search continues after that id; with fewer than p_limit of them, the page is
-- the last one.
--   called by: search_floor.sql
--   index: instances_pkey, instances_aside, instances_by_tenant, instances_by_failed_step,
--   instances_by_error_group, instances_by_key      locks: nothing
-- Sorting is off, since the planner does not know how few rows the page needs, and would read and
-- sort all instances of a status or tenant.
create function gen_durable._search_floor(
    p_index text, p_below bigint, p_from bigint, p_limit int, p_machine text, p_status text, p_step text,
    p_tenant text, p_key text, p_prefix text, p_after text,
    p_error_group text, p_oldest_first boolean
) returns table (reached bigint, reached_at timestamptz, rows_read bigint)
language plpgsql stable
set enable_sort = off
as $$
-- planner: pinned
declare
    read_by text[] := gen_durable._search_range(p_index);
begin
    execute format(
        'select %s(looked.id), count(*) from (select i.id from gen_durable.instances i where %s order by %s limit $3) looked',
        case when p_oldest_first then 'max' else 'min' end, read_by[1],
        case when p_oldest_first then replace(read_by[2], ' desc', '') else read_by[2] end)
    into reached, rows_read
    using p_below, p_from, p_limit, p_machine, null::int, p_status, p_step, null::text, p_tenant, p_key, p_prefix,
        null::text, null::text, null::text, null::timestamptz, null::timestamptz, p_after,
        gen_durable._error_group_of(p_error_group);
    select i.inserted_at into reached_at from gen_durable.instances i where i.id = reached;
    return next;
end $$;

-- schema/functions/_search_rows.sql
-- Returns the first p_limit instances that meet all conditions of a search, the newest or the
-- oldest first, among those with an id of at least p_from and below p_below. The caller has chosen
-- one end of these ids by `_search_floor`, so the statement reads a bounded number of rows by the
-- index.
--   called by: search.sql
--   index: instances_pkey, instances_aside, instances_by_tenant, instances_by_failed_step,
--   instances_by_error_group, instances_by_key      locks: nothing
-- Sorting is off, as in `_search_floor`. Only the instances with a prefix of a key are sorted:
-- their index is in the order of the keys.
create function gen_durable._search_rows(
    p_index text, p_below bigint, p_from bigint, p_limit int, p_machine text, p_version int, p_status text, p_step text,
    p_queue text, p_tenant text, p_key text, p_prefix text, p_lane text, p_partition text, p_error text,
    p_since timestamptz, p_until timestamptz, p_after text, p_error_group text, p_oldest_first boolean
) returns table (
    id bigint, tenant text, machine text, machine_version int, step text, status text, queue text, priority smallint,
    attempt int, eligible_at timestamptz, inserted_at timestamptz, updated_at timestamptz, settled_at timestamptz,
    key text, parent_id bigint, last_error text, awaits text[])
language plpgsql stable
set enable_sort = off
as $$
-- planner: pinned
declare
    read_by text[] := gen_durable._search_range(p_index);
    ordered_by text := case p_index when 'prefix' then 'i.id + 0 desc' else read_by[2] end;
begin
    return query execute format(
        $q$select i.id, i.tenant, i.machine, i.machine_version, i.step, i.status::text, i.queue, i.priority,
               i.attempt, i.eligible_at, i.inserted_at, i.updated_at, i.settled_at, i.key, i.parent_id,
               left(i.last_error, 500), i.awaits
           from gen_durable.instances i
           where %s
             and ($4 is null or i.machine = $4)
             and ($5 is null or i.machine_version = $5)
             and ($6 is null or i.status::text = $6)
             and ($7 is null or i.step = $7)
             and ($8 is null or i.queue = $8)
             and ($9 is null or i.tenant = $9)
             and ($10 is null or i.key = $10)
             and ($11 is null or starts_with(i.key, $11))
             and ($12 is null or i.lane_key = $12)
             and ($13 is null or i.partition_key = $13)
             and ($14 is null or position(lower($14) in lower(i.last_error)) > 0)
             and ($15 is null or i.inserted_at >= $15)
             and ($16 is null or i.inserted_at < $16)
             and ($18 is null or i.error_group = $18)
           order by %s
           limit $3$q$,
        read_by[1], case when p_oldest_first then replace(ordered_by, ' desc', '') else ordered_by end)
    using p_below, p_from, p_limit, p_machine, p_version, p_status, p_step, p_queue, p_tenant, p_key, p_prefix,
        p_lane, p_partition, p_error, p_since, p_until, p_after, gen_durable._error_group_of(p_error_group);
end $$;

-- schema/functions/_record_history.sql
-- Records a change from outside a step (a cancel, a reap) in the history of instances, even if the
-- machine's policy records no step results.
--   called by: _cancel_live, store::lease::reap, _set_aside_refused      index: instances_pkey
--   locks: no existing row; the caller has locked the instances
create function gen_durable._record_history(p_ids bigint[], p_outcome text, p_worker text default null) returns void
language plpgsql
as $$
-- planner: pinned
begin
    insert into gen_durable.history
        (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step, error, worker)
    select i.id, i.step_seq, i.claim_epoch, gen_durable.clock(),
        -- The reaper has already counted the crash as an attempt, so the history row gets the
        -- number of the attempt that crashed.
        i.attempt - (p_outcome = 'reap')::int, i.status, p_outcome, i.step, i.step,
        case when i.settled_at is not null or i.status = 'stuck' then left(i.last_error, 1000) end, p_worker
    from gen_durable.instances i
    where i.id = any (p_ids);
end $$;

-- schema/functions/_record_wakes.sql
-- Records when and why instances that waited or were stuck became runnable, in the last history row
-- of each. It changes only a row that describes the present state of the instance; an instance
-- without history has no such row.
--   called by: signal, _notify_parents, store::queue::retry_stuck
--   index: instances_pkey, history_pkey
--   locks: the history rows of instances that the caller has locked
create function gen_durable._record_wakes(p_ids bigint[], p_cause text) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    woken record;
begin
    -- Updates the history rows of the instances one by one: Postgres may plan a join while
    -- `history` is empty, and that plan would later read the whole table.
    for woken in
        -- Compares the status of the instance as text: a literal of the enum would allow this
        -- statement a scan of the index of all runnable instances.
        select i.id, i.step_seq, i.claim_epoch from gen_durable.instances i
        where i.id = any (p_ids) and i.status::text = 'runnable'
    loop
        update gen_durable.history t
        set woken_at = gen_durable.clock(), cause = p_cause
        where t.instance_id = woken.id and t.step_seq = woken.step_seq and t.claim_epoch = woken.claim_epoch
          and t.status in ('awaiting_signal', 'awaiting_children', 'stuck') and t.woken_at is null;
    end loop;
end $$;

-- schema/functions/_record_deadline.sql
-- Records in the history that a wait or a join has reached its deadline, if the history has a row
-- for the beginning of the wait.
--   called by: _expire      index: history_pkey
--   locks: no existing row
create function gen_durable._record_deadline(p_id bigint, p_seq bigint, p_epoch bigint, p_step text) returns void
language plpgsql
as $$
-- planner: pinned
begin
    insert into gen_durable.history
        (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
    select p_id, p_seq, p_epoch, gen_durable.clock(), 0, 'runnable', 'deadline', t.to_step, p_step
    from gen_durable.history t
    where t.instance_id = p_id and t.step_seq = p_seq - 1 and t.claim_epoch = p_epoch;
end $$;

-- schema/functions/_record_result_history.sql
-- Inserts history rows for the step results that `_write_step_results_with_effects` has written,
-- with the values of the updated rows. A result without the entry `history` adds no row.
--   called by: _write_step_results_with_effects      index: instances_pkey
--   locks: no existing row; the caller has locked the instances
create function gen_durable._record_result_history(p_results jsonb, p_written bigint[]) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    if not jsonb_path_exists(p_results, '$[*].history') then
        return;
    end if;
    insert into gen_durable.history
        (instance_id, step_seq, claim_epoch, at, took_seconds, attempt, status, outcome, from_step, to_step, error, worker)
    select i.id, i.step_seq, i.claim_epoch, gen_durable.clock(), (e->'history'->>'took')::real, (e->'history'->>'attempt')::int,
        i.status, e->'history'->>'outcome', e->'history'->>'from', i.step,
        left(coalesce(e->'history'->>'error', e->>'error'), 1000), e->'history'->>'worker'
    from jsonb_array_elements(p_results) x(e)
    join gen_durable.instances i on i.id = (e->>'id')::bigint
    where e->'history' ? 'from' and i.id = any (p_written);
    perform gen_durable._trim_history((e->>'id')::bigint, (e->>'seq')::bigint + 1)
    from jsonb_array_elements(p_results) x(e)
    where e ? 'history' and (e->>'seq')::bigint >= 999 and ((e->>'seq')::bigint + 1) % 100 < 2
      and (e->>'id')::bigint = any (p_written);
end $$;

-- schema/functions/_trim_history.sql
-- Deletes the history of an instance except its last 1,000 commits. Callers call it with every
-- hundredth commit and with the commit after that, since a deadline, which does not call it, may
-- have been the hundredth. If both calls are missed, a call within the next thousand commits
-- deletes the rows. The range has a lower end too, so that the scan does not read dead index
-- entries of rows that were deleted before.
--   called by: store::step_results, _record_result_history      index: history_pkey
--   locks: the history rows of an instance that the caller has locked
create function gen_durable._trim_history(p_id bigint, p_seq bigint) returns void
language plpgsql
as $$
-- planner: pinned
begin
    delete from gen_durable.history t
    where t.instance_id = p_id and t.step_seq > p_seq - 2000 and t.step_seq <= p_seq - 1000;
end $$;

-- schema/functions/_lane_head.sql
-- Returns the head of a lane: the instance that runs in the lane, or will run next.
--   called by: _refuse_own_lane      index: lanes_pkey, instances_lane      locks: nothing
create function gen_durable._lane_head(p_tenant text, p_key text) returns bigint
    language sql stable
    as $$
        select head.id from gen_durable.lanes l
        cross join lateral (
            select i.id from gen_durable.instances i
            where i.lane_hash = gen_durable._lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
              and i.tenant = l.tenant and i.lane_key = l.key
            order by i.lane_hash, i.lane_position
            limit 1
        ) head
        where l.tenant = p_tenant and l.key = p_key
    $$;

-- schema/functions/_refuse_own_lane.sql
-- Raises an error for children that could never run: children in a lane that has one of their
-- ancestors as its head, or in a lane with a head that waits, through children that are queued in
-- other lanes, for such an ancestor. The ancestor would wait for the child and the child for the
-- ancestor.
--   called by: enqueue_all, for children
--   index: instances_pkey, instances_children; as _lane_head
--   locks: nothing
-- It reads committed rows only: if two spawns that run at the same time form a cycle together,
-- neither sees the children of the other spawn, and the cycle is not found. A join with a deadline,
-- or a join that ends with the first child, ends by itself and is no part of a cycle.
create function gen_durable._refuse_own_lane(p_entries jsonb, p_parent bigint) returns void
language plpgsql
as $$
declare
    ancestor record;
    holders bigint[] := '{}';
    waits_for record;
begin
    for ancestor in
        with recursive above(id, parent_id, tenant, lane_key, in_lane) as (
            select i.id, i.parent_id, i.tenant, i.lane_key, i.in_lane from gen_durable.instances i where i.id = p_parent
            union all
            select i.id, i.parent_id, i.tenant, i.lane_key, i.in_lane
            from above join gen_durable.instances i on i.id = above.parent_id
        )
        select * from above where above.in_lane
    loop
        if exists (select from jsonb_array_elements(p_entries) e
                   where e->>'lane' = ancestor.lane_key and coalesce(e->>'tenant', '') = ancestor.tenant) then
            raise exception 'a child in the lane % would wait for instance %, which has that lane and waits for the child',
                ancestor.lane_key, ancestor.id
                using errcode = 'check_violation', hint = 'give the child another lane, or enqueue it without waiting for it';
        end if;
        holders := holders || ancestor.id;
    end loop;
    if holders = '{}' then
        return;
    end if;
    -- Follows the waits from the head of each lane that a child enters to the instances that the
    -- head waits for, 20 levels deep and among the first 1,000 instances found.
    with recursive chain(id, lane, steps) as (
        select gen_durable._lane_head(k.tenant, k.key), k.key, 1
        from (select distinct coalesce(e->>'tenant', '') as tenant, e->>'lane' as key
              from jsonb_array_elements(p_entries) e where e ? 'lane') k
        union
        select case when c.status = 'queued' then gen_durable._lane_head(c.tenant, c.lane_key) else c.id end, chain.lane, chain.steps + 1
        from chain
        join gen_durable.instances p on p.id = chain.id
        cross join lateral (
            select c.id, c.status, c.tenant, c.lane_key, c.settled_at from gen_durable.instances c
            where c.parent_id = p.id and c.parent_generation = p.join_generation
            order by c.id
            limit 1000
        ) c
        where chain.steps < 20 and p.status = 'awaiting_children' and p.deadline_at is null and not p.join_any
          and c.settled_at is null
    )
    select found_one.id, found_one.lane into waits_for
    from (select chain.id, chain.lane from chain limit 1000) found_one
    where found_one.id = any (holders)
    limit 1;
    if waits_for.id is not null then
        raise exception 'a child in the lane % would never run: the head of that lane waits for a child behind instance %, which waits for this child',
            waits_for.lane, waits_for.id
            using errcode = 'check_violation',
                hint = 'let lanes wait for one another in one order only, give the join a deadline, or enqueue the child without waiting for it';
    end if;
end $$;

-- schema/functions/_enter_lanes.sql
-- Locks the lanes of new instances, and returns for each lane whether an instance is in it. A lane
-- that another transaction has locked is missing from the result.
--   called by: _lanes_at_once      index: instances_lane; as _lock_lanes      locks: as _lock_lanes
create function gen_durable._enter_lanes(p_entries jsonb) returns table (tenant text, key text, taken boolean)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
declare
    tenants text[];
    keys text[];
    floors bigint[];
begin
    select array_agg(l.tenant order by l.tenant, l.key), array_agg(l.key order by l.tenant, l.key) into tenants, keys
    from (select distinct coalesce(e->>'tenant', '') as tenant, e->>'lane' as key
          from jsonb_array_elements(p_entries) e where e ? 'lane') l;
    select array_agg(l.tenant), array_agg(l.key), array_agg(l.floor) into tenants, keys, floors
    from gen_durable._lock_lanes(tenants, keys) l;
    -- Reads whether each lane has instances in another statement than the lock of the lanes, so
    -- that the snapshot of this read is newer than the locks.
    return query
    select l.tenant, l.key, exists (
        select from gen_durable.instances i
        where i.lane_hash = gen_durable._lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
          and i.tenant = l.tenant and i.lane_key = l.key)
    from unnest(tenants, keys, floors) as l(tenant, key, floor);
end $$;

-- schema/functions/_lanes_at_once.sql
-- Locks the lanes of new instances, if the inserting statement may assign their lane positions, and
-- returns the lanes as _enter_lanes does. If this function returns no row, the instances draw
-- arrival numbers and placement assigns their positions later.
--   called by: enqueue_all, if its transaction ends with the statement
--   index: placement_watermarks_pkey; as _place, _enter_lanes
--   locks: as _place, then as _enter_lanes
-- The inserting statement may assign positions only if every instance that arrived before has its
-- position, and this transaction holds the placement lock. It may not if an entry has both a lane
-- and a partition key: placement would process that entry after later entries of its lane. It may
-- not for more than 10,000 entries: their lanes and every placement would wait while the entries
-- are inserted. It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._lanes_at_once(p_entries jsonb) returns table (tenant text, key text, taken boolean)
language plpgsql
as $$
declare
    watermark gen_durable.placement_watermarks;
    place_from bigint;
begin
    if jsonb_array_length(p_entries) > 10000 or not gen_durable._is_read_committed()
       or not jsonb_path_exists(p_entries, '$[*].lane') or jsonb_path_exists(p_entries, '$[*].key')
       or jsonb_path_exists(p_entries, '$[*] ? (exists (@.lane) && exists (@.partition))') then
        return;
    end if;
    -- This function reads the placement watermark without the placement lock: from any watermark
    -- and its open transactions, a placement finds every instance that was committed before the
    -- watermark is read. When a transaction that was open for long has ended, a placement has to
    -- read all arrival numbers that were drawn since that transaction began. A pick runs that
    -- placement, so that the enqueuing caller does not wait.
    select w.* into watermark from gen_durable.placement_watermarks w order by w.n desc limit 1;
    place_from := watermark.placed_to;
    if watermark.open_xids <> '{}' then
        place_from := gen_durable._placement_start(place_from, watermark.open_xids, watermark.open_since, pg_current_snapshot());
    end if;
    if watermark.placed_to - place_from <= 2000 and gen_durable._place(place_from, 1000) is null then
        return query select l.tenant, l.key, l.taken from gen_durable._enter_lanes(p_entries) l;
    end if;
end $$;

-- schema/functions/_enqueue_keyed.sql
-- Inserts a batch of instances of which some have a key, one by one in the order of their keys, so
-- that two batches with the same keys wait for one another and do not deadlock. Returns the same
-- rows as enqueue_all.
--   called by: enqueue_all      index: instances_key, queues_fair
--   locks: no existing row; waits for an open transaction that has inserted the same key
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._enqueue_keyed(p_entries jsonb, p_parent bigint, p_generation int)
returns table (place int, id bigint, is_new boolean, eligible_at timestamptz)
language plpgsql
as $$
#variable_conflict use_column
declare
    entry record;
    made record;
    tries int;
begin
    for entry in
        -- Draws ids and arrival numbers of the new instances in the order of the entries, since
        -- steps read children in the order of their ids.
        select e.value, e.place, e.id, e.arrival_no
        from (select e.value, e.place, nextval('gen_durable.instances_id_seq') as id,
                     case when e.value ?| array['partition', 'lane'] then nextval('gen_durable.arrival_numbers') end as arrival_no
              from jsonb_array_elements(p_entries) with ordinality e(value, place)
              order by e.place) e
        order by coalesce(e.value->>'tenant', ''), e.value->>'key', e.place
    loop
        tries := 0;
        loop
            insert into gen_durable.instances as i
                (id, machine, machine_version, step, data, state, queue, priority, tenant, eligible_at, traceparent,
                 key, key_scope, parent_id, parent_generation,
                 partition_key, lane_key, lane_blocks, status, partition_waiting, arrival_no, limit_group, limit_weight, fair)
            overriding system value
            values (
                entry.id, (entry.value->>'machine')::gen_durable.name, coalesce((entry.value->>'version')::int, 1), (entry.value->>'step')::gen_durable.name,
                entry.value->'data', entry.value->'state', coalesce(entry.value->>'queue', 'default')::gen_durable.queue_name,
                coalesce((entry.value->>'priority')::smallint, 0::smallint), coalesce(entry.value->>'tenant', '')::gen_durable.tenant_name,
                gen_durable._due((entry.value->>'at')::timestamptz, (entry.value->>'delay')::float8),
                entry.value->>'traceparent', (entry.value->>'key')::gen_durable.key_name, gen_durable.key_scope(entry.value->>'scope'),
                p_parent, p_generation,
                (entry.value->>'partition')::gen_durable.key_name, (entry.value->>'lane')::gen_durable.key_name, coalesce((entry.value->>'lane_blocks')::boolean, false),
                case when entry.value ? 'lane' then 'queued' else 'runnable' end::gen_durable.durable_status,
                entry.value ? 'partition' and not entry.value ? 'lane', entry.arrival_no,
                entry.value->>'limit_group', (entry.value->>'limit_weight')::bigint,
                coalesce(entry.value->>'queue', 'default') = any (array(select q.name from gen_durable.queues q where q.fair)))
            on conflict (tenant, held_key) where held_key is not null do nothing
            returning i.id, i.eligible_at into made;
            if made.id is not null then
                return query select entry.place::int, made.id, true, made.eligible_at;
                exit;
            end if;
            -- Another instance holds the key of an entry. If that instance settles between the
            -- insert and this read, the key is free, and this function repeats the insert.
            select i.id, i.eligible_at, i.machine into made
            from gen_durable.instances i
            where i.tenant = coalesce(entry.value->>'tenant', '') and i.held_key = entry.value->>'key';
            if made.id is not null then
                if made.machine <> entry.value->>'machine' and not coalesce(entry.value->'former_names' ? made.machine, false) then
                    raise exception 'the key % is held by instance % of machine %, not of %', quote_literal(entry.value->>'key'),
                        made.id, made.machine, entry.value->>'machine'
                        using errcode = 'unique_violation', hint = 'keys are unique across machines: give each machine''s keys a prefix';
                end if;
                return query select entry.place::int, made.id, false, made.eligible_at;
                exit;
            end if;
            tries := tries + 1;
            if tries > 100 then
                raise exception 'the key % is taken by an instance that this transaction cannot see', entry.value->>'key'
                    using errcode = 'serialization_failure';
            end if;
        end loop;
    end loop;
end $$;

-- schema/functions/enqueue_all.sql
-- Inserts instances, with or without a key.
--   called by: store::enqueue, _apply_effects, enqueue, signal_or_start, _fire, SQL
--   index: instances_pkey, queues_fair; as _refuse_own_lane, _lanes_at_once, _enqueue_keyed
--   locks: no existing row; as _enqueue_keyed, and if p_at_once as _lanes_at_once
-- Returns one row per entry: its place in p_entries, the id of the new instance (or of the instance
-- that already holds the key), whether the instance is new, and when it is due. Raises
-- unique_violation if an instance of another machine (neither `machine` nor one of `former_names`)
-- holds the key.
create function gen_durable.enqueue_all(
    p_entries jsonb, p_parent bigint default null, p_generation int default null, p_at_once boolean default false
)
returns table (place int, id bigint, is_new boolean, eligible_at timestamptz)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    lane_tenants text[];
    lane_keys text[];
    lane_taken boolean[];
    round bigint;
begin
    if jsonb_path_exists(p_entries, '$[*].lane') or jsonb_path_exists(p_entries, '$[*].partition') then
        -- Assigns an id to this transaction before it draws an arrival number: see `_place_new`.
        perform pg_current_xact_id();
        if p_parent is not null then
            perform gen_durable._refuse_own_lane(p_entries, p_parent);
        end if;
        if p_at_once then
            select array_agg(l.tenant), array_agg(l.key), array_agg(l.taken) into lane_tenants, lane_keys, lane_taken
            from gen_durable._lanes_at_once(p_entries) l;
            if lane_keys is not null then
                round := nextval('gen_durable.placement_rounds') << 20;
            end if;
        end if;
    end if;
    if jsonb_path_exists(p_entries, '$[*].key') then
        return query select e.* from gen_durable._enqueue_keyed(p_entries, p_parent, p_generation) e;
        return;
    end if;
    -- Inserts the entries without keys in one statement. An entry in a lane that this transaction
    -- has locked gets its lane position at once, and the first entry in a lane without instances
    -- becomes runnable.
    return query
    with made as (
        insert into gen_durable.instances as i
            (machine, machine_version, step, data, state, queue, priority, tenant, eligible_at, traceparent, parent_id, parent_generation,
             partition_key, lane_key, lane_blocks, status, partition_waiting, in_lane, lane_position, arrival_no, limit_group, limit_weight, fair)
        select (e.value->>'machine')::gen_durable.name, coalesce((e.value->>'version')::int, 1), (e.value->>'step')::gen_durable.name,
            e.value->'data', e.value->'state', coalesce(e.value->>'queue', 'default')::gen_durable.queue_name, coalesce((e.value->>'priority')::smallint, 0::smallint),
            coalesce(e.value->>'tenant', '')::gen_durable.tenant_name,
            gen_durable._due((e.value->>'at')::timestamptz, (e.value->>'delay')::float8),
            e.value->>'traceparent', p_parent, p_generation,
            (e.value->>'partition')::gen_durable.key_name, (e.value->>'lane')::gen_durable.key_name, coalesce((e.value->>'lane_blocks')::boolean, false),
            case when not e.value ? 'lane' or (e.nth = 1 and not l.taken) then 'runnable' else 'queued' end::gen_durable.durable_status,
            e.value ? 'partition' and not e.value ? 'lane',
            l.taken is not null,
            case when l.taken is not null then round + e.place end,
            case when e.value ?| array['partition', 'lane'] and l.taken is null then nextval('gen_durable.arrival_numbers') end,
            e.value->>'limit_group', (e.value->>'limit_weight')::bigint,
            coalesce(e.value->>'queue', 'default') = any (array(select q.name from gen_durable.queues q where q.fair))
        from (select e.value, e.place, row_number() over (
                  partition by coalesce(e.value->>'tenant', ''), e.value->>'lane' order by e.place) as nth
              from jsonb_array_elements(p_entries) with ordinality e(value, place)) e
        left join unnest(lane_tenants, lane_keys, lane_taken) as l(tenant, key, taken)
            on l.tenant = coalesce(e.value->>'tenant', '') and l.key = e.value->>'lane'
        order by e.place
        returning i.id, i.eligible_at
    )
    select (row_number() over (order by made.id))::int, made.id, true, made.eligible_at from made;
end $$;

-- schema/functions/enqueue.sql
-- Enqueues one instance: select gen_durable.enqueue('send_receipt', '{"order": 42}'). Options are
-- named arguments. Returns the id of the new instance, or, if another instance holds the key, the
-- id of that instance.
--   called by: SQL      index: instances_key, if the instance has a key
--   locks: no existing row; waits for an open transaction that has inserted the same key
create function gen_durable.enqueue(
    machine text, state jsonb default '{}', step text default 'run', data jsonb default null, version int default 1,
    queue text default 'default', priority int default 0, tenant text default '', delay interval default null,
    at timestamptz default null, key text default null, scope text default 'live', traceparent text default null
) returns bigint
language sql
set search_path = gen_durable, pg_temp
as $$
    -- Leaves out options of the new instance that are null. A null inside the state or the data
    -- stays.
    select e.id from gen_durable.enqueue_all(jsonb_build_array(
        jsonb_build_object('machine', machine, 'step', step, 'state', state)
        || case when data is null then '{}' else jsonb_build_object('data', data) end
        || jsonb_strip_nulls(jsonb_build_object('version', version, 'queue', queue, 'priority', priority, 'tenant', tenant,
            'delay', extract(epoch from delay), 'at', at, 'key', key, 'scope', scope, 'traceparent', traceparent)))) e
$$;

-- schema/functions/_next_in_partition.sql
-- Returns the instance that becomes the next holder of a partition key: the first waiting instance
-- that is due, in the order of the picker; if none is due, the instance that will be due first.
--   called by: _assign_partition, _partition_successors, _repair_partitions
--   index: partition_cursors_pkey; instances_partition_waiting, one probe per priority
--   locks: nothing
create function gen_durable._next_in_partition(p_tenant text, p_key text) returns bigint
language plpgsql stable
as $$
declare
    found_one record;
    first_id bigint;
    first_at timestamptz := 'infinity';
    above int := -40000;
    floor_priority smallint;
    floor_at timestamptz;
    floor_id bigint;
begin
    select coalesce(min(t.priority), -32768), coalesce(min(t.at), '-infinity'), coalesce(min(t.id), 0)
    into floor_priority, floor_at, floor_id from gen_durable.partition_cursors t where t.tenant = p_tenant and t.key = p_key;
    loop
        select i.id, i.priority, i.eligible_at into found_one
        from gen_durable.instances i
        where i.tenant = p_tenant and i.partition_key = p_key and i.partition_waiting and i.priority > above
          and (i.priority, i.eligible_at, i.id) >= (floor_priority, floor_at, floor_id)
        order by i.tenant, i.partition_key, i.priority, i.eligible_at, i.id
        limit 1;
        exit when found_one.id is null;
        if found_one.eligible_at <= gen_durable.clock() then
            return found_one.id;
        end if;
        if first_id is null or found_one.eligible_at < first_at then
            first_id := found_one.id;
            first_at := found_one.eligible_at;
        end if;
        above := found_one.priority;
    end loop;
    return first_id;
end $$;

-- schema/functions/_assign_partition.sql
-- Ensures that a partition has a holder, if any instance waits for the partition. p_came has the
-- instances that have arrived since the last placement. Returns false if another transaction has
-- locked a needed row: the caller has to try again later.
--   called by: _choose_partition_holders
--   index: instances_partition_holder, instances_partition_waiting, partition_cursors_pkey,
--   instances_pkey
--   locks: the holder and the instance that becomes the holder, skipping locked rows. The caller
--   holds the placement lock.
create function gen_durable._assign_partition(p_tenant text, p_key text, p_came bigint[]) returns boolean
language plpgsql
as $$
declare
    holder record;
    best bigint;
    best_at timestamptz;
begin
    select i.id, i.status, i.eligible_at into holder
    from gen_durable.instances i
    where i.tenant = p_tenant and i.partition_key = p_key and not i.partition_waiting
      and (i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null);
    if holder.id is not null then
        -- Locks the holder of the partition and reads its row a second time: a commit that is about
        -- to free the partition does not see instances that have arrived since it began, and
        -- without the lock this transaction would not see that commit.
        select i.id, i.status, i.eligible_at into holder
        from gen_durable.instances i
        where i.id = holder.id and not i.partition_waiting and (i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null)
        for no key update skip locked;
        if holder.id is null then
            return false;
        end if;
    end if;
    -- Lowers the cursor of the partition to the first of the arrived instances, even if that
    -- instance has been cancelled since its arrival: other instances that arrived with it wait
    -- behind it.
    with came as materialized (
        -- Reads the arrived instances by id and not by partition: a scan of the partition's index
        -- would read all waiting instances.
        select i.tenant, i.partition_key, i.priority, i.eligible_at, i.id
        from gen_durable.instances i where i.id = any (p_came)
    )
    update gen_durable.partition_cursors t set priority = f.priority, at = f.eligible_at, id = f.id
    from (select c.priority, c.eligible_at, c.id from came c
          where c.tenant = p_tenant and c.partition_key = p_key
          order by c.priority, c.eligible_at, c.id limit 1) f
    where t.tenant = p_tenant and t.key = p_key and (t.priority, t.at, t.id) > (f.priority, f.eligible_at, f.id);
    if holder.id is not null then
        -- The holder of the partition is executing or due, and stays the holder. A cancelled holder
        -- stays too, since its step still runs.
        if holder.status <> 'runnable' or holder.eligible_at <= gen_durable.clock() then
            return true;
        end if;
    end if;
    best := gen_durable._next_in_partition(p_tenant, p_key);
    if best is null then
        return true;
    end if;
    select i.eligible_at into best_at
    from gen_durable.instances i where i.id = best and i.partition_waiting
    for no key update skip locked;
    if best_at is null then
        return false;
    end if;
    if holder.id is not null then
        -- The holder of the partition is not due yet. An instance that is due, or will be due
        -- sooner, replaces it.
        if best_at >= holder.eligible_at then
            return true;
        end if;
        update gen_durable.instances i set partition_waiting = true where i.id = holder.id;
    end if;
    update gen_durable.instances i
    set partition_waiting = false, eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
    where i.id = best;
    return true;
end $$;

-- schema/functions/_lock_lanes.sql
-- Locks lanes and returns the lanes that it has locked. Inserts the rows of lanes that have none.
-- It skips a lane that another transaction has locked: a placement waits for no transaction, and
-- the own transaction of a step that settled the last instance of a lane may hold the lane for
-- long. Because of the lock, either a placement sees the commit that frees the lane, or that commit
-- sees the placed instances.
--   called by: _place, _enter_lanes      index: lanes_pkey
--   locks: the lanes in the order of (tenant, key), FOR UPDATE SKIP LOCKED
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._lock_lanes(p_tenants text[], p_keys text[])
returns table (tenant text, key text, floor bigint)
language plpgsql
as $$
#variable_conflict use_column
begin
    -- Inserts only rows of `lanes` that are missing: on a conflict with a row of an open
    -- transaction, the insert would wait for that transaction.
    insert into gen_durable.lanes (tenant, key)
    select * from unnest(p_tenants, p_keys) as k(tenant, key)
    where not exists (select from gen_durable.lanes l where l.tenant = k.tenant and l.key = k.key)
    on conflict do nothing;
    return query select l.tenant, l.key, l.floor
    from unnest(p_tenants, p_keys) as k(tenant, key)
    join gen_durable.lanes l on l.tenant = k.tenant and l.key = k.key
    order by l.tenant, l.key
    for update of l skip locked;
end $$;

-- schema/functions/_place_in_lanes.sql
-- Assigns lane positions to the instances p_ids in the order of arrival, and makes the head of each
-- lane runnable. The other arrays describe the lanes, which this transaction has locked. A lane may
-- have no instance in p_ids, if it only needs a head.
--   called by: _place      index: instances_pkey, instances_lane
--   locks: the heads by id, skipping locked rows
-- Returns the heads that became runnable. For each lane with a locked head it also returns one
-- instance of p_ids in `again`: the caller draws a new arrival number for it, so that the next
-- placement reads the lane again. It runs under the planner settings of its callers (see
-- schema/planner.sql).
create function gen_durable._place_in_lanes(
    p_ids bigint[], p_tenants text[], p_keys text[], p_floors bigint[],
    out released bigint[], out again bigint[]
)
language plpgsql
as $$
declare
    round bigint;
    heads bigint[];
begin
    round := nextval('gen_durable.placement_rounds') << 20;
    update gen_durable.instances i
    set arrival_no = null,
        in_lane = i.in_lane or i.status = 'queued',
        lane_position = case when i.status = 'queued' and not i.in_lane then round + n.place else i.lane_position end
    from (select i.id, row_number() over (order by i.arrival_no) as place
          from gen_durable.instances i where i.id = any (p_ids) and i.lane_key is not null) n
    where i.id = n.id;

    heads := array(
        select head.id
        from unnest(p_tenants, p_keys, p_floors) as l(tenant, key, floor)
        cross join lateral (
            select i.id, i.status from gen_durable.instances i
            where i.lane_hash = gen_durable._lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
              and i.tenant = l.tenant and i.lane_key = l.key
            order by i.lane_hash, i.lane_position
            limit 1
        ) head
        where head.status = 'queued');
    released := array(select i.id from gen_durable.instances i where i.id = any (heads) and i.status = 'queued'
                      order by i.id for no key update skip locked);
    update gen_durable.instances i
    set status = 'runnable', partition_waiting = i.partition_key is not null,
        eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
    where i.id = any (released);
    if cardinality(released) < cardinality(heads) then
        again := array(
            select max(i.id) from gen_durable.instances i
            join gen_durable.instances h on h.tenant = i.tenant and h.lane_key = i.lane_key
            where i.id = any (p_ids) and h.id = any (heads) and h.id <> all (released)
            group by i.tenant, i.lane_key);
    end if;
end $$;

-- schema/functions/_choose_partition_holders.sql
-- Ensures that each partition of these instances has a holder. For each partition with a locked
-- row, returns one instance: the first that waits. The caller draws a new arrival number for that
-- instance, and the next placement tries the partition again. One instance is enough for all that
-- arrived together, since that placement lowers the partition cursor to it.
--   called by: _place
--   index: instances_pkey, instances_partition_holder, instances_partition_waiting,
--   partition_cursors_pkey; as _assign_partition
--   locks: the holders, then partition cursors, then the instances that become holders; skips
--   locked instances; as _assign_partition. The caller holds the placement lock.
-- Most partitions have a holder that stays, or no holder and a first waiting instance that is due.
-- Four statements serve all of these together; `_assign_partition` serves each of the others. It
-- runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._choose_partition_holders(p_ids bigint[]) returns bigint[]
language plpgsql
as $$
declare
    -- The partitions: for each an arrived instance that stands for it, its first arrived instance
    -- in the order of the picker, and its holder, as far as the first statement sees one.
    samples bigint[];
    tenants text[];
    keys text[];
    firsts bigint[];
    holders bigint[];
    staying bigint[];
    served bigint[];
    chosen bigint[];
    again bigint[] := '{}';
    partition record;
begin
    select array_agg(a.sample), array_agg(a.tenant), array_agg(a.partition_key), array_agg(a.first), array_agg(
        (select i.id from gen_durable.instances i
         where i.tenant = a.tenant and i.partition_key = a.partition_key and not i.partition_waiting
           and (i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null)))
    into samples, tenants, keys, firsts, holders
    from (select i.tenant, i.partition_key, min(i.id) as sample, (array_agg(i.id order by i.priority, i.eligible_at, i.id))[1] as first
          from gen_durable.instances i
          where i.id = any (p_ids) and i.partition_key is not null
          group by i.tenant, i.partition_key) a;
    if keys is null then
        return again;
    end if;
    -- Locks the holders and reads their rows a second time: a commit that is about to free a
    -- partition does not see instances that have arrived since it began, and without the lock this
    -- transaction would not see that commit. A holder that is executing or due stays the holder.
    staying := array(
        select i.id from gen_durable.instances i
        where i.id = any (holders) and not i.partition_waiting
          and (i.status in ('executing', 'awaiting_limit') or i.status = 'runnable' and i.eligible_at <= gen_durable.clock())
        order by i.id
        for no key update skip locked);
    -- Lowers the cursors of these partitions, and of those without a holder, to the first arrived
    -- instance, even if it was cancelled since its arrival: others that arrived with it wait behind
    -- it. No commit has locked these cursors, since a commit locks the holder first.
    update gen_durable.partition_cursors t set priority = i.priority, at = i.eligible_at, id = i.id
    from unnest(tenants, keys, firsts, holders) as p(tenant, key, first, holder)
    join gen_durable.instances i on i.id = p.first
    where t.tenant = p.tenant and t.key = p.key and (p.holder is null or p.holder = any (staying))
      and (t.priority, t.at, t.id) > (i.priority, i.eligible_at, i.id);
    -- In a partition without a holder, the first waiting instance becomes the holder if it is due.
    select array_agg(w.id), array_agg(p.sample) into chosen, served
    from unnest(samples, tenants, keys, holders) as p(sample, tenant, key, holder)
    left join gen_durable.partition_cursors t on t.tenant = p.tenant and t.key = p.key
    cross join lateral (
        select i.id, i.eligible_at from gen_durable.instances i
        where i.tenant = p.tenant and i.partition_key = p.key and i.partition_waiting
          and (i.priority, i.eligible_at, i.id)
              >= (coalesce(t.priority, '-32768'::smallint), coalesce(t.at, '-infinity'), coalesce(t.id, 0))
        order by i.tenant, i.partition_key, i.priority, i.eligible_at, i.id
        limit 1
    ) w
    where p.holder is null and w.eligible_at <= gen_durable.clock();
    -- A plain `partition_waiting` would allow a plan that reads all waiting instances.
    with free as materialized (
        select i.id from gen_durable.instances i where i.id = any (chosen) and coalesce(i.partition_waiting, false)
        order by i.id
        for no key update skip locked
    ), made as (
        update gen_durable.instances i
        set partition_waiting = false, eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
        from free where i.id = free.id
        returning i.id
    )
    select array_agg(c.sample) into served
    from unnest(chosen, served) as c(id, sample) join made on made.id = c.id;
    for partition in
        select i.tenant, i.partition_key as key, array_agg(i.id order by i.partition_waiting desc, i.priority, i.eligible_at, i.id) as ids
        from gen_durable.instances i
        where i.id = any (p_ids) and i.partition_key is not null
        group by i.tenant, i.partition_key
        having min(i.id) <> all (served || array(
            select p.sample from unnest(samples, holders) as p(sample, holder) where p.holder = any (staying)))
        order by i.tenant, i.partition_key
    loop
        if not gen_durable._assign_partition(partition.tenant, partition.key, partition.ids) then
            again := again || partition.ids[1];
        end if;
    end loop;
    return again;
end $$;

-- schema/functions/_place.sql
-- Places instances that have drawn an arrival number above p_from: assigns lane positions in the
-- order of arrival, and ensures that each lane of these instances has a head that may run and that
-- each of their partitions has a holder.
--   called by: _place_new, _lanes_at_once, _repair, place.sql
--   index: instances_arrival_no, instances_pkey; as its parts
--   locks: the placement lock (the row of `placement_lock`), so that one transaction places at a
--   time; then the arrived instances, lanes and heads, skipping locked rows: it waits for no lock.
--   A skipped instance keeps its arrival number, and the next placement reads it again. Returns the
--   number up to which every instance is placed; null if all are placed.
create function gen_durable._place(p_from bigint, p_limit int) returns bigint
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    looked_to bigint := p_from;
    reached bigint;
    seen bigint[];
    taken bigint[];
    left_out bigint[];
    mine bigint[] := '{}';
    passed_over bigint[] := '{}';
    first_left bigint;
    wanted_tenants text[];
    wanted_keys text[];
    -- Lanes in which this placement assigns no positions: another transaction has locked the lane,
    -- or an instance that arrived in the lane.
    shut_tenants text[] := '{}';
    shut_keys text[] := '{}';
    -- Lanes that this placement has locked.
    lane_tenants text[] := '{}';
    lane_keys text[] := '{}';
    lane_floors bigint[] := '{}';
    got_tenants text[];
    got_keys text[];
    got_floors bigint[];
    released bigint[] := '{}';
    again bigint[];
begin
    perform from gen_durable.placement_lock where one for update skip locked;
    if not found then
        return p_from;
    end if;
    -- Placement usually needs one page. It reads up to five pages if it skips instances, so that
    -- skipped instances do not delay the instances that arrived after them.
    for pass in 1..5 loop
        select array_agg(a.id order by a.arrival_no), case when count(*) = p_limit then max(a.arrival_no) end into seen, reached
        from (select i.id, i.arrival_no from gen_durable.instances i
              where i.arrival_no > looked_to and not exists (
                  select from unnest(shut_tenants, shut_keys) as shut(tenant, key) where shut.tenant = i.tenant and shut.key = i.lane_key)
              order by i.arrival_no limit p_limit) a;
        exit when seen is null;
        -- Reads the arrived instances by id: a plain `arrival_no is not null` would allow this
        -- statement a scan of the index of all arrival numbers.
        taken := array(select i.id from gen_durable.instances i
                       where i.id = any (seen) and coalesce(i.arrival_no, 0) > 0 order by i.id for no key update skip locked);
        select array_agg(l.tenant order by l.tenant, l.lane_key), array_agg(l.lane_key order by l.tenant, l.lane_key)
        into wanted_tenants, wanted_keys
        from (select distinct i.tenant, i.lane_key from gen_durable.instances i where i.id = any (taken) and i.lane_key is not null) l;
        if wanted_keys is not null then
            select array_agg(l.tenant), array_agg(l.key), array_agg(l.floor)
            into got_tenants, got_keys, got_floors
            from gen_durable._lock_lanes(wanted_tenants, wanted_keys) l;
            lane_tenants := lane_tenants || got_tenants;
            lane_keys := lane_keys || got_keys;
            lane_floors := lane_floors || got_floors;
        end if;
        left_out := '{}';
        if cardinality(taken) < cardinality(seen) or wanted_keys is not null and cardinality(wanted_keys) > coalesce(cardinality(got_keys), 0) then
            left_out := array(select unnest(seen) except select unnest(taken));
            -- Placement assigns no positions in a lane in which another transaction has locked an
            -- arrived instance: a later instance must not get a position before that instance.
            select shut_tenants || coalesce(array_agg(l.tenant), '{}'), shut_keys || coalesce(array_agg(l.lane_key), '{}') into shut_tenants, shut_keys
            from (select i.tenant, i.lane_key from gen_durable.instances i where i.id = any (left_out) and i.lane_key is not null
                  union
                  select k.* from unnest(wanted_tenants, wanted_keys) as k(tenant, key)
                  where not exists (select from unnest(got_tenants, got_keys) as g(tenant, key) where g.tenant = k.tenant and g.key = k.key)
                 ) l;
            left_out := left_out || array(
                select i.id from gen_durable.instances i
                where i.id = any (taken) and exists (
                    select from unnest(shut_tenants, shut_keys) as shut(tenant, key) where shut.tenant = i.tenant and shut.key = i.lane_key));
            taken := array(select unnest(taken) except select unnest(left_out));
        end if;
        mine := mine || taken;
        passed_over := passed_over || left_out;
        exit when reached is null or left_out = '{}';
        looked_to := reached;
    end loop;
    if mine = '{}' and passed_over = '{}' then
        return null;
    end if;

    -- Assigns lane positions and makes heads of lanes runnable. A lane that this transaction has
    -- locked needs a head even if no position is assigned in it.
    if lane_keys <> '{}' then
        select p.released, p.again into released, again
        from gen_durable._place_in_lanes(mine, lane_tenants, lane_keys, lane_floors) p;
    end if;
    again := again || gen_durable._choose_partition_holders(mine || released);
    update gen_durable.instances i set arrival_no = null
    where i.id = any (mine) and i.lane_key is null;

    -- Draws a new arrival number for each lane without a head and each partition without a holder,
    -- if a row of it was locked, so that the next placement reads the lane or partition again.
    if cardinality(again) > 0 then
        update gen_durable.instances i set arrival_no = nextval('gen_durable.arrival_numbers') where i.id = any (again);
    end if;
    first_left := (select min(i.arrival_no + 0) from gen_durable.instances i where i.id = any (passed_over));
    return least(reached, first_left - 1);
end $$;

-- schema/functions/_placement_start.sql
-- Returns the arrival number after which the next placement begins: the watermark, or a smaller
-- number if a transaction has ended that was open when the watermark rose above its numbers.
--   called by: _place_arrivals, _place_new, _lanes_at_once      index: none      locks: nothing
create function gen_durable._placement_start(p_placed_to bigint, p_open_xids xid8[], p_open_since bigint[], p_seen pg_snapshot)
returns bigint
    language sql immutable
    as $$
        select least(p_placed_to, min(open.since)) from unnest(p_open_xids, p_open_since) as open(xid, since)
        where pg_visible_in_snapshot(open.xid, p_seen)
    $$;

-- schema/functions/_place_new.sql
-- Places the instances that drew an arrival number after the last placement, and moves the
-- watermark.
--   called by: _place_arrivals, _set_aside_refused, _repair
--   index: placement_watermarks_pkey; as _place
--   locks: the placement lock; if another transaction holds it, this function does nothing; as
--   _place
-- A transaction may draw a number long before it commits. The watermark rises above such a number,
-- and its row records the transactions that were open at that time. When one of these transactions
-- has ended, the next placement reads once all numbers since that transaction began. So a
-- transaction that stays open costs a pick nothing, although the index keeps an entry for every
-- number that was drawn and placed since the transaction began. No instance is missed:
--   1. A placement reads the last number that was drawn, and gets its own transaction id after
--   that. Every other transaction gets its id before it draws a number. So every transaction that
--   drew one of these numbers has a smaller id than the placement.
--   2. The next placement that moves the watermark has a newer snapshot. In this snapshot, each of
--   those transactions either has ended, and its rows are visible and get placed, or is listed as
--   open. The snapshot's xmax is above the id of the first placement, since the first placement has
--   ended.
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._place_new(p_limit int) returns void
language plpgsql
as $$
declare
    watermark gen_durable.placement_watermarks;
    drawn_to bigint;
    seen pg_snapshot;
    start bigint;
    reached bigint;
    moves_to bigint;
begin
    if pg_current_xact_id_if_assigned() is null then
        select case when a.is_called then a.last_value else a.last_value - 1 end into drawn_to from gen_durable.arrival_numbers a;
    end if;
    perform from gen_durable.placement_lock where one for update skip locked;
    if not found then
        return;
    end if;
    select w.* into watermark from gen_durable.placement_watermarks w order by w.n desc limit 1;
    seen := pg_current_snapshot();
    start := gen_durable._placement_start(watermark.placed_to, watermark.open_xids, watermark.open_since, seen);
    reached := gen_durable._place(start, p_limit);
    -- The watermark of placement moves down if an instance between the start of this placement and
    -- the watermark could not be placed.
    moves_to := least(watermark.drawn, reached);
    -- A placement of fewer than 100 arrival numbers writes no new watermark: to read these numbers
    -- again costs less than a new row each time.
    if start = watermark.placed_to and moves_to - watermark.placed_to < 100 and coalesce(drawn_to - watermark.drawn, 0) < 100 then
        return;
    end if;
    insert into gen_durable.placement_watermarks (placed_to, drawn, drawn_before, open_xids, open_since, sweep_due_at)
    select moves_to, coalesce(drawn_to, watermark.drawn), case when drawn_to is null then watermark.drawn_before else pg_current_xact_id() end,
        coalesce(array_agg(open.xid), '{}'), coalesce(array_agg(open.since), '{}'), watermark.sweep_due_at
    from (select old.xid, old.since from unnest(watermark.open_xids, watermark.open_since) as old(xid, since)
          where not pg_visible_in_snapshot(old.xid, seen)
          union all
          select new.xid, watermark.placed_to from pg_snapshot_xip(seen) as new(xid)
          where moves_to > watermark.placed_to and new.xid < watermark.drawn_before and new.xid <> all (watermark.open_xids)) open;
    delete from gen_durable.placement_watermarks w where w.n = watermark.n;
end $$;

-- schema/functions/_place_arrivals.sql
-- Places instances that have entered a lane or wait for a partition key, if any has arrived since
-- the last placement. If it cannot exclude new arrivals cheaply (many arrival numbers were drawn),
-- it starts a placement, and only the picker that gets the placement lock reads the numbers.
-- Returns the arrival number up to which everything was placed before, or null if a transaction was
-- open that may have drawn a smaller number.
--   called by: _pick      index: placement_watermarks_pkey, instances_arrival_no; as _place_new
--   locks: as _place_new
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._place_arrivals() returns bigint
language plpgsql
as $$
declare
    placement record;
begin
    select w.placed_to, w.open_xids, w.open_since, (select a.last_value from gen_durable.arrival_numbers a) as drawn into placement
    from gen_durable.placement_watermarks w order by w.n desc limit 1;
    if placement.drawn - placement.placed_to >= 200
       or placement.open_xids <> '{}' and gen_durable._placement_start(
           placement.placed_to, placement.open_xids, placement.open_since, pg_current_snapshot()) < placement.placed_to
       or exists (select from gen_durable.instances i where i.arrival_no > placement.placed_to) then
        perform gen_durable._place_new(1000);
    end if;
    return case when placement.open_xids = '{}' then placement.placed_to end;
end $$;

-- schema/functions/_repair_lanes.sql
-- Checks a page of lanes after (p_tenant, p_key). Deletes lanes without instances. If the head of a
-- lane is queued and no placement is pending for it, the head draws an arrival number, so that
-- `_place` makes it runnable.
--   called by: _repair      index: lanes_pkey, instances_lane
--   locks: the lanes in (tenant, key), and heads, skipping locked rows
-- Returns the last lane of the page (null if the page was the last), and how many lanes were
-- repaired. It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._repair_lanes(
    p_tenant text, p_key text, p_limit int, out next_tenant text, out next_key text, out repaired int
)
language plpgsql
as $$
declare
    lane record;
    head record;
    looked int := 0;
begin
    repaired := 0;
    for lane in
        select l.tenant, l.key, l.floor from gen_durable.lanes l
        where (l.tenant, l.key) > (p_tenant, p_key)
        order by l.tenant, l.key
        limit p_limit
        for update skip locked
    loop
        looked := looked + 1;
        next_tenant := lane.tenant;
        next_key := lane.key;
        select i.id, i.status into head from gen_durable.instances i
        where i.lane_hash = gen_durable._lane_hash(lane.tenant, lane.key) and i.in_lane and i.lane_position > lane.floor
          and i.tenant = lane.tenant and i.lane_key = lane.key
        order by i.lane_hash, i.lane_position
        limit 1;
        if head.id is null then
            delete from gen_durable.lanes l where l.tenant = lane.tenant and l.key = lane.key;
        elsif head.status = 'queued' then
            update gen_durable.instances i set arrival_no = nextval('gen_durable.arrival_numbers')
            where i.id = (select h.id from gen_durable.instances h where h.id = head.id and h.arrival_no is null
                          for no key update skip locked);
            repaired := repaired + found::int;
        end if;
    end loop;
    if looked < p_limit then
        next_tenant := null;
        next_key := null;
    end if;
end $$;

-- schema/functions/_repair_partitions.sql
-- Checks a page of the partitions that instances wait for, after (p_tenant, p_key). If a partition
-- has no holder, deletes its cursor and draws an arrival number for the first waiting instance, so
-- that `_place` makes that instance the holder.
--   called by: _repair      index: instances_partition_waiting, instances_partition_holder, partition_cursors_pkey; as _next_in_partition
--   locks: the first waiting instance, skipping it if it is locked
-- Returns the last partition of the page (null if the page was the last), and how many partitions
-- were repaired. It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._repair_partitions(
    p_tenant text, p_key text, p_limit int, out next_tenant text, out next_key text, out repaired int
)
language plpgsql
as $$
declare
    waiting record;
    looked int := 0;
begin
    repaired := 0;
    next_tenant := p_tenant;
    next_key := p_key;
    loop
        select i.tenant, i.partition_key as key into waiting from gen_durable.instances i
        where i.partition_waiting and (i.tenant, i.partition_key) > (next_tenant, next_key)
        order by i.tenant, i.partition_key
        limit 1;
        next_tenant := waiting.tenant;
        next_key := waiting.key;
        exit when next_key is null;
        if not exists (select from gen_durable.instances i
                       where i.tenant = next_tenant and i.partition_key = next_key and not i.partition_waiting
                         and (i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null)) then
            delete from gen_durable.partition_cursors t where t.tenant = next_tenant and t.key = next_key;
            update gen_durable.instances i set arrival_no = nextval('gen_durable.arrival_numbers')
            where i.id = (select h.id from gen_durable.instances h
                          where h.id = gen_durable._next_in_partition(next_tenant, next_key) and h.arrival_no is null
                          for no key update skip locked);
            repaired := repaired + found::int;
        end if;
        looked := looked + 1;
        exit when looked >= p_limit;
    end loop;
end $$;

-- schema/functions/_repair.sql
-- Repairs lanes and partitions that have waiting instances but no head or holder that can run, one
-- page of lanes and one page of partitions per call.
--   called by: store::lane::repair      index: placement_watermarks_pkey; as its parts
--   locks: the placement lock; then as _place and its parts
-- Returns where the next call continues (null: at the beginning), and how many lanes and partitions
-- were repaired. Returns no row if another transaction holds the placement lock.
create function gen_durable._repair(p_lane_tenant text, p_lane_key text, p_tenant text, p_key text, p_limit int)
returns table (lane_tenant text, lane_key text, tenant text, key text, repaired int)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    lanes record;
    partitions record;
    swept bigint;
begin
    perform from gen_durable.placement_lock where one for update skip locked;
    if not found then
        return;
    end if;
    -- First runs a placement for instances that have arrived. Every 30 s one worker begins this
    -- placement at the first arrival number, whatever the watermark says. A placement from the
    -- first number lowers a watermark that is above the sequence of arrival numbers, if the
    -- sequence was set back.
    select case when w.sweep_due_at <= statement_timestamp() then w.n end into swept
    from gen_durable.placement_watermarks w order by w.n desc limit 1;
    if not found then
        insert into gen_durable.placement_watermarks default values;
    end if;
    if swept is null then
        perform gen_durable._place_new(1000);
    else
        perform gen_durable._place(0, 1000);
        update gen_durable.placement_watermarks w
        set sweep_due_at = statement_timestamp() + interval '30 s',
            placed_to = least(w.placed_to, (select a.last_value from gen_durable.arrival_numbers a)),
            drawn = least(w.drawn, (select a.last_value from gen_durable.arrival_numbers a))
        where w.n = swept;
    end if;
    select * into lanes from gen_durable._repair_lanes(p_lane_tenant, p_lane_key, p_limit);
    select * into partitions from gen_durable._repair_partitions(p_tenant, p_key, p_limit);
    if lanes.repaired + partitions.repaired > 0 then
        perform gen_durable._place_new(1000);
    end if;
    return query select lanes.next_tenant, lanes.next_key, partitions.next_tenant, partitions.next_key,
        lanes.repaired + partitions.repaired;
end $$;

-- schema/functions/_declare_limits.sql
-- Declares limits with the bounds that the code of a worker has. If an operator has changed the
-- bounds of a limit, it keeps those. p_limits is an array of objects with the columns of `limits`.
--   called by: store::limit::declare      index: limits_pkey, limit_locks_pkey
--   locks: the rows of the limits with a changed declaration
create function gen_durable._declare_limits(p_limits jsonb) returns void
language plpgsql
as $$
-- planner: pinned
begin
    insert into gen_durable.limits as l
        (name, at_once, per_key, rate, period, burst, key_rate, key_period, key_burst, declared)
    select d.name, d.at_once, d.per_key, d.rate, d.period, d.burst, d.key_rate, d.key_period, d.key_burst, e.value - 'name'
    from jsonb_array_elements(p_limits) as e(value)
    cross join lateral jsonb_populate_record(null::gen_durable.limits, e.value) d
    order by d.name
    on conflict (name) do update
    set declared = excluded.declared,
        at_once = case when l.changed_at is null then excluded.at_once else l.at_once end,
        per_key = case when l.changed_at is null then excluded.per_key else l.per_key end,
        rate = case when l.changed_at is null then excluded.rate else l.rate end,
        period = case when l.changed_at is null then excluded.period else l.period end,
        burst = case when l.changed_at is null then excluded.burst else l.burst end,
        key_rate = case when l.changed_at is null then excluded.key_rate else l.key_rate end,
        key_period = case when l.changed_at is null then excluded.key_period else l.key_period end,
        key_burst = case when l.changed_at is null then excluded.key_burst else l.key_burst end
    where l.declared is distinct from excluded.declared;
    insert into gen_durable.limit_locks (name)
    select e.value->>'name' from jsonb_array_elements(p_limits) as e(value) order by 1
    on conflict do nothing;
end $$;

-- schema/functions/_limit_pairs.sql
-- Returns the limits of a group: their names and keys. A group is the text `name\1key`, and with
-- several limits `name\1key\2name\1key`, sorted by name. A key may be empty. Neither names nor keys
-- contain control characters, so in the order of bytes the claims of a limit are the range from
-- `name\1` to `name\2`, and those of a key are the range from `name\1key` to `name\1key\3`.
--   called by: _pick_limited, _admit, _serve_group, store::explain      index: none      locks: nothing
create function gen_durable._limit_pairs(p_group text) returns table (nth bigint, name text, key text)
    language sql immutable
    as $$ select u.nth, split_part(u.pair, chr(1), 1), split_part(u.pair, chr(1), 2)
          from unnest(string_to_array(p_group, chr(2))) with ordinality as u(pair, nth) $$;

-- schema/functions/_limit_room.sql
-- Returns the bounds of limits and how much of them is free now: for each name and key, how many
-- claims may begin, how many tokens are left, and when the limit opens, if it is closed (`infinity`
-- if it is paused). The key '' stands for the whole limit. A limit that no worker has declared has
-- no bound. With p_for_people it counts claims, up to 10,001, even where there is no bound. A
-- caller that needs p_needed claims at most, and finds room for more by `claims_max`, counts none:
-- `claims` is then an upper bound.
--   called by: _admit, _serve_group, take_rate, adjust_rate, store::limit
--   index: limits_pkey, limit_keys_pkey, limit_tokens_pkey, limit_locks_pkey, limit_holds_pkey,
--   instances_limit_held, instances_pkey
--   locks: nothing. A caller that claims holds the locks of the limits, so no other transaction
--   adds a claim.
create function gen_durable._limit_room(p_names text[], p_keys text[], p_for_people boolean default false, p_needed int default null)
returns table (
    name text, key text, free int, tokens float8, burst float8, per_second float8, next_at timestamptz,
    at_once int, claims bigint, rate float8, period float8
)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
begin
    return query
    select n.name, n.key,
        case when l.paused_at is not null or l.closed_until > gen_durable.clock() then 0
             when bound.at_once is null then 2147483647
             else greatest(0, bound.at_once - coalesce(known.claims, used.claims))::int end,
        -- A clock that was set back adds no tokens.
        case when bound.rate is null then 'infinity'
             else least(bound.burst, coalesce(
                 t.tokens + greatest(0, extract(epoch from gen_durable.clock() - t.at))::float8 * bound.rate / bound.period, bound.burst)) end,
        coalesce(bound.burst, 'infinity'),
        bound.rate / bound.period,
        case when l.paused_at is not null then 'infinity' else l.closed_until end,
        bound.at_once, coalesce(known.claims, used.claims), bound.rate, bound.period
    from unnest(p_names, p_keys) as n(name, key)
    left join gen_durable.limits l on l.name = n.name
    left join gen_durable.limit_keys k on n.key <> '' and k.name = n.name and k.key = n.key
    left join gen_durable.limit_tokens t on t.name = n.name and t.key = n.key
    cross join lateral (
        select case when n.key = '' then l.at_once else coalesce(k.at_once, l.per_key) end as at_once,
            case when n.key = '' then l.rate when k.rate is not null then k.rate else l.key_rate end as rate,
            case when n.key = '' then l.period when k.rate is not null then k.period else l.key_period end as period,
            case when n.key = '' then l.burst when k.rate is not null then k.burst else l.key_burst end as burst
    ) bound
    left join lateral (
        select k.claims_max as claims from gen_durable.limit_locks k
        where n.key = '' and k.name = n.name and p_needed is not null and k.claims_max + p_needed < bound.at_once
    ) known on true
    cross join lateral (select case when p_for_people then 10001 when known.claims is null then bound.at_once end as count_to) counting
    cross join lateral (
        select count(*) as claims
        from (
            (select 1 from gen_durable.instances i
             where i.limit_group is not null and (i.status = 'executing' or i.locked_by is not null)
               and i.limit_group >= n.name || chr(1) || n.key
               and i.limit_group < case when n.key = '' then n.name || chr(2) else n.name || chr(1) || n.key || chr(3) end
               and counting.count_to is not null
             order by i.limit_group
             limit counting.count_to)
            union all
            (select 1 from gen_durable.limit_holds h
             join gen_durable.instances i on i.id = h.instance_id and i.claim_epoch in (h.claim_epoch, h.claim_epoch + (i.status = 'cancelled')::int)
             where h.name = n.name and (n.key = '' or h.key = n.key) and counting.count_to is not null
               and (i.status = 'executing' or i.locked_by is not null)
             limit counting.count_to)
        ) claim
    ) used;
end $$;

-- schema/functions/_hold.sql
-- Writes the second and further limits of these instances to limit_holds. The caller claims the
-- instances before it ends, so the rows name the next claim.
--   called by: _admit      index: instances_pkey, limit_holds_pkey
--   locks: the rows that it writes. The caller holds the locks of the limits.
create function gen_durable._hold(p_ids bigint[]) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    insert into gen_durable.limit_holds as h (name, key, instance_id, claim_epoch)
    select p.name, p.key, i.id, i.claim_epoch + 1
    from unnest(p_ids) as admitted(id)
    join gen_durable.instances i on i.id = admitted.id
    cross join lateral gen_durable._limit_pairs(i.limit_group) p
    where p.nth > 1
    order by p.name, p.key, i.id
    on conflict (name, key, instance_id) do update set claim_epoch = excluded.claim_epoch;
end $$;

-- schema/functions/_admit.sql
-- Decides which of these instances may begin now, in their order, and takes the tokens of those.
-- The instances are candidates of a pick that has locked their rows and their limits. An instance
-- takes all of its limits or none. With p_waits_behind it waits behind the instances of its group
-- that wait already. Returns the ids of the admitted instances; the caller claims them before it
-- ends.
--   called by: _choose_candidates, _pick_limited, _serve_group
--   index: limit_backlog_pkey, limit_tokens_pkey, limit_locks_pkey; as _limit_room and _hold
--   locks: the rows of limit_tokens. The caller holds the locks of the limits.
-- Its large statement reads no table, so hash joins are safe in it: the candidates of a pick may
-- have hundreds of keys.
-- An instance with several limits may find one free and another one taken. Such an instance counts
-- in the free one only if all of its limits had room before this call, so one limit that is full
-- does not keep the others from being used.
create function gen_durable._admit(p_ids bigint[], p_groups text[], p_weights float8[], p_waits_behind boolean) returns bigint[]
language plpgsql
as $$
-- planner: pinned, hash joins
declare
    behind text[] := case when p_waits_behind
        then array(select distinct b.limit_group from gen_durable.limit_backlog b where b.limit_group = any (p_groups)) else '{}' end;
    admitted bigint[];
begin
    with candidate as materialized (
        select c.id, c.limit_group, c.weight, c.nth
        from unnest(p_ids, p_groups, p_weights) with ordinality as c(id, limit_group, weight, nth)
    ), member as materialized (
        select g.limit_group, p.name, p.key, g.limit_group = any (behind) as is_behind
        from (select distinct c.limit_group from candidate c) g
        cross join lateral gen_durable._limit_pairs(g.limit_group) p
    ), scope as materialized (
        select r.*
        from (select array_agg(s.name) as names, array_agg(s.key) as keys
              from (select m.name, m.key from member m union select m.name, '' from member m) s) a
        cross join lateral gen_durable._limit_room(a.names, a.keys, p_needed => cardinality(p_ids)) r
    ), pair as (
        select c.id, c.nth, c.weight, m.name, m.key,
            not m.is_behind and whole.free > 0 and own.free > 0 as has_room,
            whole.free as whole_free, whole.tokens as whole_tokens, whole.burst as whole_burst,
            own.free as own_free, own.tokens as own_tokens, own.burst as own_burst
        from candidate c
        join member m on m.limit_group = c.limit_group
        join scope whole on whole.name = m.name and whole.key = ''
        join scope own on own.name = m.name and own.key = m.key
    ), possible as (
        select p.*, bool_and(p.has_room) over (partition by p.id) as is_possible from pair p
    ), by_key as (
        select p.*,
            count(*) filter (where p.is_possible) over same_key as key_count,
            sum(p.weight) filter (where p.is_possible) over same_key as key_weight
        from possible p
        window same_key as (partition by p.name, p.key order by p.nth)
    ), fitting as (
        -- An instance that weighs more than the burst begins if the bucket is full, and leaves a
        -- debt.
        select k.*, bool_and(k.is_possible and k.key_count <= k.own_free
                and k.key_weight - k.weight + least(k.weight, k.own_burst) <= k.own_tokens) over (partition by k.id) as fits
        from by_key k
    ), in_whole as (
        select f.*,
            count(*) filter (where f.fits) over same_limit as whole_count,
            sum(f.weight) filter (where f.fits) over same_limit as whole_weight
        from fitting f
        window same_limit as (partition by f.name order by f.nth)
    ), judged as materialized (
        select w.id, w.nth, w.weight
        from in_whole w
        group by w.id, w.nth, w.weight
        having bool_and(w.fits and w.whole_count <= w.whole_free
            and w.whole_weight - w.weight + least(w.weight, w.whole_burst) <= w.whole_tokens)
    ), spent as (
        select p.name, p.key, sum(p.weight) as weight, count(*) as claims
        from (select j.weight, m.name, m.key from judged j join candidate c on c.id = j.id join member m on m.limit_group = c.limit_group
              union all
              select j.weight, m.name, '' from judged j join candidate c on c.id = j.id join member m on m.limit_group = c.limit_group and m.key <> '') p
        group by p.name, p.key
    ), paid as (
        -- The time of a bucket never moves back: a pick that began before another one may get the
        -- lock after it.
        insert into gen_durable.limit_tokens as t (name, key, tokens, at)
        select s.name, s.key, s.tokens - spent.weight, gen_durable.clock()
        from scope s join spent on spent.name = s.name and spent.key = s.key
        where s.per_second is not null
        on conflict (name, key) do update set tokens = excluded.tokens, at = greatest(t.at, excluded.at)
    ), counted as (
        update gen_durable.limit_locks l set claims_max = case when s.at_once is not null then s.claims + spent.claims end
        from scope s join spent on spent.name = s.name and spent.key = s.key
        where s.key = '' and l.name = s.name and (s.at_once is not null or l.claims_max is not null)
    )
    select array_agg(j.id order by j.nth) into admitted from judged j;
    if admitted is not null and exists (select from unnest(p_groups) g where position(chr(2) in g) > 0) then
        perform gen_durable._hold(admitted);
    end if;
    return coalesce(admitted, '{}');
end $$;

-- schema/functions/_serve_group.sql
-- Chooses instances of one group and queue that wait for their limits and may begin now, takes
-- their tokens, and returns their ids. Writes when a pick tries the group again, or deletes the row
-- of the group if no other instance of it waits.
--   called by: _pick_limited
--   index: instances_limit_waiting, limit_backlog_pkey, limit_tokens_pkey; as _limit_room and
--   _admit
--   locks: the row of the group and the chosen instances, FOR NO KEY UPDATE SKIP LOCKED. The caller
--   holds the locks of the limits.
-- A group that waits for tokens is tried again when there are enough of them, and at least once a
-- minute. A group that waits for the end of a claim is tried again by the worker that ends one
-- (p_freed of `_pick`), and after p_retry, in case that worker has crashed.
create function gen_durable._serve_group(p_group text, p_queue text, p_room int, p_known text[], p_retry interval) returns bigint[]
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    names text[];
    keys text[];
    room record;
    ids bigint[] := '{}';
    weights float8[];
    chosen bigint[] := '{}';
    wait float8;
    next_at timestamptz := gen_durable.clock();
    held text;
begin
    perform from gen_durable.limit_backlog b where b.limit_group = p_group and b.queue = p_queue for no key update skip locked;
    if not found then
        return '{}';
    end if;
    select array_agg(s.name), array_agg(s.key) into names, keys
    from (select p.name, p.key from gen_durable._limit_pairs(p_group) p
          union select p.name, '' from gen_durable._limit_pairs(p_group) p) s;
    -- A clock that was set back must not stop a rate until the clock has caught up. A pick that
    -- began a little before another one and got the lock after it must not set the time back: the
    -- tokens of the time between would be added twice.
    update gen_durable.limit_tokens t set at = gen_durable.clock()
    from unnest(names, keys) as s(name, key)
    where t.name = s.name and t.key = s.key and t.at > gen_durable.clock() + interval '5 seconds';
    select min(r.free) as free, max(r.next_at) filter (where r.next_at > gen_durable.clock()) as opens_at,
        (array_agg(case when r.key = '' then r.name else r.name || chr(1) || r.key end order by r.free, r.key))[1] as scope
    into room from gen_durable._limit_room(names, keys, p_needed => p_room) r;
    if room.free > 0 then
        select coalesce(array_agg(w.id order by w.nth), '{}'), array_agg(w.weight order by w.nth) into ids, weights
        from (select i.id, coalesce(i.limit_weight, 1)::float8 as weight, row_number() over () as nth
              from (select i.id, i.limit_weight
                    from gen_durable.instances i
                    where i.status = 'awaiting_limit' and i.limit_group = p_group and i.queue = p_queue
                      and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
                    order by i.limit_group, i.queue, i.priority, i.eligible_at, i.id
                    limit least(room.free, p_room)
                    for no key update skip locked) i) w;
        if ids <> '{}' then
            chosen := gen_durable._admit(ids, array_fill(p_group, array[cardinality(ids)]), weights, false);
        end if;
    end if;
    if not exists (select from gen_durable.instances i
                   where i.status = 'awaiting_limit' and i.limit_group = p_group and i.queue = p_queue and i.id <> all (chosen)) then
        delete from gen_durable.limit_backlog b where b.limit_group = p_group and b.queue = p_queue;
        return chosen;
    end if;
    if room.opens_at is not null then
        -- A paused limit wakes its groups when it is resumed.
        next_at := least(room.opens_at, gen_durable.clock() + interval '1 minute');
    elsif cardinality(chosen) < cardinality(ids) then
        -- The tokens do not suffice for the next instance.
        select max((least(weights[cardinality(chosen) + 1], r.burst) - r.tokens) / r.per_second) into wait
        from gen_durable._limit_room(names, keys) r where r.per_second is not null;
        next_at := gen_durable.clock() + make_interval(secs => least(60, greatest(0, coalesce(wait, 0))));
    elsif cardinality(chosen) >= room.free then
        held := room.scope;
        next_at := gen_durable.clock() + p_retry;
    elsif cardinality(ids) < p_room then
        -- Another transaction has locked the others, or this worker does not know their step.
        next_at := gen_durable.clock() + p_retry;
    end if;
    update gen_durable.limit_backlog b set ready_at = next_at, held_on = held
    where b.limit_group = p_group and b.queue = p_queue;
    return chosen;
end $$;

-- schema/functions/_park.sql
-- Lets instances wait for their limits: they leave the index of the pickers, and the row of their
-- group tells later picks that they wait.
--   called by: _pick_limited      index: instances_pkey, limit_backlog_pkey
--   locks: nothing further: the caller has locked the instances and their limits
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._park(p_ids bigint[]) returns void
language plpgsql
as $$
begin
    with parked as (
        update gen_durable.instances i set status = 'awaiting_limit', updated_at = gen_durable.clock()
        from (select c.id from unnest(p_ids) as c(id) limit cardinality(p_ids)) chosen
        where i.id = chosen.id
        returning i.limit_group, i.queue
    )
    insert into gen_durable.limit_backlog (limit_group, queue, names)
    select p.limit_group, p.queue, array(select l.name from gen_durable._limit_pairs(p.limit_group) l)
    from parked p group by p.limit_group, p.queue
    on conflict (limit_group, queue) do nothing;
end $$;

-- schema/functions/_limits_due.sql
-- Returns when a pick tries the next group of instances that wait for their limits in these queues,
-- except the paused ones.
--   called by: _pick, _pick_limited      index: limit_backlog_ready, two probes per queue      locks: nothing
-- A group that is due more than a minute from now was tried before the clock was set back: it is
-- due. It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._limits_due(p_queues text[], p_paused text[]) returns timestamptz
language plpgsql stable
as $$
begin
    return (
        select min(due.ready_at)
        from unnest(p_queues) as wanted(queue)
        cross join lateral (
            (select b.ready_at from gen_durable.limit_backlog b where b.queue = wanted.queue order by b.ready_at limit 1)
            union all
            (select gen_durable.clock() from gen_durable.limit_backlog b
             where b.queue = wanted.queue and b.ready_at > gen_durable.clock() + interval '61 seconds' limit 1)
        ) due
        where wanted.queue <> all (coalesce(p_paused, '{}')));
end $$;

-- schema/functions/_due_groups.sql
-- Returns groups of instances that wait for limits and that a pick tries now, with their queues:
-- those that are due in these queues, and those that wait for a claim to end in a bound in which
-- this worker has ended one. `retry_seconds` says after how long the next pick tries a group that
-- is still held: the more groups are due at the same time, the later.
--   called by: _pick_limited, _wake_freed      index: limit_backlog_ready, limit_backlog_held
--   locks: nothing
-- p_freed has the groups of the claims that this worker has ended. They may wait in other queues.
-- No group is due later than a minute after it was tried. A later time shows that the clock was set
-- back since, and the group is due.
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._due_groups(p_queues text[], p_freed text[])
returns table (limit_group text, queue text, retry_seconds float8)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    with due as materialized (
        select found.*
        from unnest(p_queues) as wanted(queue)
        cross join lateral (
            (select b.limit_group, b.queue, b.ready_at from gen_durable.limit_backlog b
             where b.queue = wanted.queue and b.ready_at <= gen_durable.clock()
             order by b.ready_at limit 32)
            union all
            (select b.limit_group, b.queue, b.ready_at from gen_durable.limit_backlog b
             where b.queue = wanted.queue and b.ready_at > gen_durable.clock() + interval '61 seconds'
             order by b.ready_at limit 32)
        ) found
        order by found.ready_at
        limit 32
    ), freed as materialized (
        select found.*
        from (select p.name as scope, 32 as most from unnest(p_freed) f(limit_group) cross join lateral gen_durable._limit_pairs(f.limit_group) p
              union
              select p.name || chr(1) || p.key, 8 from unnest(p_freed) f(limit_group) cross join lateral gen_durable._limit_pairs(f.limit_group) p
              where p.key <> '') s
        cross join lateral (
            select b.limit_group, b.queue, b.ready_at from gen_durable.limit_backlog b
            where b.held_on = s.scope
            order by b.ready_at
            limit s.most
        ) found
    )
    select w.limit_group, w.queue, (select greatest(count(*), 1) from due)::float8
    from (select * from due union select * from freed) w
    order by w.ready_at, w.limit_group;
end $$;

-- schema/functions/_wake_freed.sql
-- Lets the next pick of any worker try the groups that wait for a claim to end in these limits.
-- p_freed has the groups of claims that have ended.
--   called by: store::limit::wake_freed      index: as _due_groups; limit_backlog_pkey
--   locks: the rows of the groups, skipping rows that a pick has locked: that pick tries them now
create function gen_durable._wake_freed(p_freed text[]) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    update gen_durable.limit_backlog b set ready_at = gen_durable.clock()
    where (b.limit_group, b.queue) in (
        select w.limit_group, w.queue from gen_durable.limit_backlog w
        join gen_durable._due_groups('{}', p_freed) g on g.limit_group = w.limit_group and g.queue = w.queue
        where w.ready_at > gen_durable.clock()
        for no key update of w skip locked);
end $$;

-- schema/functions/_lock_limits.sql
-- Locks the limits of these groups, in the order of their names. Returns false, and holds no lock,
-- if another transaction has not released one of them within 50 ms. Afterwards it deletes the rows
-- of limit_holds that are of these limits and of claims that have ended.
--   called by: _pick_limited      index: limit_locks_pkey, limit_holds_pkey, instances_pkey
--   locks: rows of limit_locks, FOR NO KEY UPDATE
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._lock_limits(p_groups text[]) returns boolean
language plpgsql
as $$
declare
    wanted text[] := array(
        select p.name from (select distinct g.limit_group from unnest(p_groups) g(limit_group) where g.limit_group is not null) g
        cross join lateral gen_durable._limit_pairs(g.limit_group) p
        group by p.name order by p.name);
begin
    if wanted = '{}' then
        return true;
    end if;
    perform set_config('lock_timeout', '50ms', true);
    begin
        perform from gen_durable.limit_locks l where l.name = any (wanted) order by l.name for no key update;
    exception when lock_not_available or deadlock_detected then
        return false;
    end;
    if exists (select from gen_durable.limit_holds h where h.name = any (wanted)) then
        delete from gen_durable.limit_holds h
        where h.name = any (wanted) and not exists (
            select from gen_durable.instances i
            where i.id = h.instance_id and i.claim_epoch in (h.claim_epoch, h.claim_epoch + (i.status = 'cancelled')::int)
              and (i.status = 'executing' or i.locked_by is not null));
    end if;
    return true;
end $$;

-- schema/functions/_due_tenants.sql
-- Returns the tenants of a fair queue that have due instances, each with the first of these: at
-- most 1,000 after the cursor (p_after_priority, p_after_tenant), or from the first one if
-- p_after_tenant is null. The last row may be a tenant without a due instance, with a null due
-- time: the caller goes on after it.
--   called by: store::fair::due_tenants
--   index: instances_fair, one probe per tenant; instances_pick
--   locks: instances that are not in instances_fair yet, FOR NO KEY UPDATE SKIP LOCKED
-- A pick finds tenants by their new instances (see `_fair_page`). This scan finds tenants of
-- instances that committed late or were locked when a pick read them, and costs less than many
-- pages of new instances. An instance that was enqueued while the queue was not fair is not in
-- instances_fair. The scan adds those among the first 2,000 due instances of the queue: one that
-- keeps others behind it is due before them, so it is among the first at some time.
create function gen_durable._due_tenants(p_queue text, p_after_priority smallint, p_after_tenant text)
returns table (priority smallint, tenant text, eligible_at timestamptz, id bigint)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    after_due timestamptz := case when p_after_tenant is null then '-infinity' else 'infinity' end;
begin
    priority := p_after_priority;
    tenant := coalesce(p_after_tenant, '');
    update gen_durable.instances i set fair = true
    from (
        select m.id from gen_durable.instances m
        where m.id in (
            select first.id
            from (select i.id, i.fair, i.eligible_at from gen_durable.instances i
                  where i.queue = p_queue and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
                  order by i.queue, i.priority, i.eligible_at, i.id limit 2000) first
            where not first.fair and first.eligible_at <= gen_durable.clock())
        for no key update skip locked
    ) unmarked
    where i.id = unmarked.id;
    for n in 1..1000 loop
        select i.priority, i.tenant, i.eligible_at, i.id into priority, tenant, eligible_at, id
        from gen_durable.instances i
        where i.queue = p_queue and i.fair and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
          and (i.priority, i.tenant, i.eligible_at) > (_due_tenants.priority, _due_tenants.tenant, after_due)
        order by i.priority, i.tenant, i.eligible_at, i.id limit 1;
        exit when not found;
        after_due := 'infinity';
        if eligible_at <= gen_durable.clock() then
            return next;
        elsif n = 1000 then
            eligible_at := null;
            return next;
        end if;
    end loop;
end $$;

-- schema/functions/_fair_page.sql
-- Reads the newest due instances of a fair queue: for each priority, at most 2,000 after the
-- watermark of the picker. Returns their ids; `reached`, the ends of the pages that were full as
-- [priority, eligible_at, id]; and their tenants as [priority, tenant, from, from_id], where (from,
-- from_id) is the position before the first instance of the tenant.
--   called by: _fair_candidates, store::fair::page      index: instances_pick, instances_pkey
--   locks: instances of the page that are not in instances_fair, FOR NO KEY UPDATE SKIP LOCKED
-- The ranges of the pick begin where the last pick ended that read this page. So a worker reads
-- each instance once to find its tenant, and once to claim it, however many a tenant has.
-- `is_indexed` tells that all of the page was in instances_fair, so that `_due_tenants` finds the
-- tenants after the page faster. The function adds the others.
create function gen_durable._fair_page(
    p_queue text,
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[], p_known text[],
    out ids bigint[], out reached jsonb, out tenants jsonb, out is_indexed boolean)
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    page_max constant int := 2000;
    unmarked bigint[];
begin
    with due as materialized (
        select range.priority, found.id, found.tenant, found.eligible_at, found.fair,
            row_number() over (partition by range.priority order by found.eligible_at, found.id) as nth
        from unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id) as range(queue, priority, since, since_id)
        cross join lateral (
            select i.id, i.tenant, i.eligible_at, i.fair
            from gen_durable.instances i
            where i.queue = p_queue and i.priority = range.priority
              and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
              and (i.eligible_at, i.id) > (range.since, range.since_id)
              and i.eligible_at <= gen_durable.clock()
              and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
            order by i.eligible_at, i.id
            limit page_max
        ) found
        where range.queue = p_queue
    )
    select coalesce(array_agg(d.id order by d.priority, d.nth), '{}'), array_agg(d.id) filter (where not d.fair),
        (select jsonb_agg(jsonb_build_array(f.priority, f.tenant, f.eligible_at, f.id - 1) order by f.priority, f.nth)
         from (select distinct on (o.priority, o.tenant) o.* from due o order by o.priority, o.tenant, o.nth) f),
        coalesce(jsonb_agg(jsonb_build_array(d.priority, d.eligible_at, d.id)) filter (where d.nth = page_max), '[]')
    into ids, unmarked, tenants, reached
    from due d;
    tenants := coalesce(tenants, '[]');
    is_indexed := unmarked is null;
    if not is_indexed then
        update gen_durable.instances i set fair = true
        from (select m.id from gen_durable.instances m where m.id = any (unmarked) for no key update skip locked) m
        where i.id = m.id;
    end if;
end $$;

-- schema/functions/_fair_candidates.sql
-- Locks the instances of a fair queue that a pick may claim, up to p_room, so that its tenants
-- share the room, and returns their ids. If all due instances fit into the room, it returns them
-- in the order of the pick. Otherwise it takes some of each tenant, and returns a report from which
-- the picker learns which tenants have due instances.
--   called by: _candidates      index: instances_fair, instances_pkey; as _fair_page
--   locks: the instances, FOR NO KEY UPDATE SKIP LOCKED; as _fair_page
-- p_tenants has the tenants that this worker knows: [priority, tenant, from, from_id, room]. The
-- worker has claimed the due instances of the tenant up to (from, from_id). All room is for the
-- most urgent priority. A tenant that only the page has found gets none: the picker may know it,
-- with instances before those of the page, and asks for it in the next pick.
-- The report has `reached` and `is_indexed` of `_fair_page`, its tenants as `found`, and `tenants`:
-- [priority, tenant, from, from_id, at, id, is_exhausted], where (at, id) is the last candidate of
-- the tenant and is_exhausted tells that there were fewer than asked for.
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._fair_candidates(
    p_queue text, p_room int,
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    p_tenants jsonb, p_known text[], out ids bigint[], out report jsonb)
language plpgsql
as $$
declare
    page record;
    urgent smallint;
begin
    select * into page
    from gen_durable._fair_page(p_queue, p_range_queues, p_range_priorities, p_range_from, p_range_from_id, p_known);
    if p_tenants = '[]' and cardinality(page.ids) <= p_room then
        ids := array(
            select i.id from unnest(page.ids) with ordinality as p(id, nth)
            join gen_durable.instances i on i.id = p.id
            where i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting and i.eligible_at <= gen_durable.clock()
            order by p.nth
            for no key update of i skip locked);
        return;
    end if;
    urgent := (select min((t.value->>0)::smallint) from jsonb_array_elements(p_tenants || page.tenants) as t(value));
    with known(nth, priority, tenant, since, since_id, room) as (
        -- An instance of a known tenant that committed late is before the watermark of the tenant.
        select t.nth, (t.value->>0)::smallint, t.value->>1,
            case when s.is_late then s.since else (t.value->>2)::timestamptz end,
            case when s.is_late then s.since_id else (t.value->>3)::bigint end,
            case when (t.value->>0)::smallint = urgent then (t.value->>4)::int else 0 end
        from jsonb_array_elements(p_tenants) with ordinality as t(value, nth)
        left join lateral (
            select (f.value->>2)::timestamptz as since, (f.value->>3)::bigint as since_id,
                ((f.value->>2)::timestamptz, (f.value->>3)::bigint) < ((t.value->>2)::timestamptz, (t.value->>3)::bigint) as is_late
            from jsonb_array_elements(page.tenants) as f(value)
            where f.value->0 = t.value->0 and f.value->1 = t.value->1) s on true
    ), candidate as materialized (
        select k.nth, k.priority, c.id, c.eligible_at, c.place
        from known k
        cross join lateral (
            select i.id, i.eligible_at, row_number() over () as place
            from (select i.id, i.eligible_at
                  from gen_durable.instances i
                  where i.queue = p_queue and i.priority = k.priority and i.tenant = k.tenant and i.fair
                    and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
                    and (i.eligible_at, i.id) > (k.since, k.since_id)
                    and i.eligible_at <= gen_durable.clock()
                    and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
                  order by i.eligible_at, i.id
                  limit k.room
                  for no key update skip locked) i
        ) c
    )
    select coalesce((select array_agg(c.id order by c.priority, c.place, c.nth) from candidate c), '{}'),
        jsonb_build_object('queue', p_queue, 'reached', page.reached, 'is_indexed', page.is_indexed, 'found', page.tenants,
            'tenants', coalesce(jsonb_agg(jsonb_build_array(k.priority, k.tenant, k.since, k.since_id, last.eligible_at, last.id,
                                                            coalesce(last.place, 0) < k.room) order by k.nth), '[]'))
    into ids, report
    from known k
    left join (select distinct on (c.nth) c.* from candidate c order by c.nth, c.place desc) last on last.nth = k.nth;
end $$;

-- schema/functions/_tenant_instances.sql
-- Locks and returns the due instances of the tenants that a pick has asked for (see
-- `_fair_candidates`), up to the room of the queue for each.
--   called by: _set_aside_refused      index: instances_fair
--   locks: the instances, FOR NO KEY UPDATE SKIP LOCKED
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._tenant_instances(p_queues text[], p_room int[], p_fair jsonb, p_known text[])
returns table (id bigint)
language plpgsql
as $$
#variable_conflict use_column
begin
    return query
    select found.id
    from unnest(p_queues, p_room) as wanted(queue, free)
    cross join lateral jsonb_array_elements(p_fair->wanted.queue) as t(value)
    cross join lateral (
        select i.id from gen_durable.instances i
        where i.queue = wanted.queue and i.priority = (t.value->>0)::smallint and i.tenant = t.value->>1 and i.fair
          and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
          and (i.eligible_at, i.id) > ((t.value->>2)::timestamptz, (t.value->>3)::bigint) and i.eligible_at <= gen_durable.clock()
          and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
        order by i.eligible_at, i.id
        limit wanted.free
        for no key update skip locked
    ) found;
end $$;

-- schema/functions/_candidates.sql
-- Locks the instances that a pick may claim, up to the room of each queue, and returns them as
-- columns in the order of the pick, with the limits and the weight of each. `report` is an array
-- of the reports of `_fair_candidates`, one per fair queue with more due instances than room.
--   called by: _pick_limited      index: instances_pick, instances_pkey; as _fair_candidates
--   locks: the instances, FOR NO KEY UPDATE SKIP LOCKED, in (priority, eligible_at, id); as
--   _fair_candidates
-- p_fair has an entry for each fair queue: the arguments of `_fair_candidates`.
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._candidates(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[], p_known text[], p_fair jsonb,
    out ids bigint[], out groups text[], out weights float8[], out queues text[], out report jsonb)
language plpgsql
as $$
declare
    fair_queue record;
    shared record;
    fair_ids bigint[] := '{}';
begin
    if p_fair is not null then
        for fair_queue in
            select w.queue, w.free, coalesce(p_fair->w.queue, '[]') as tenants
            from unnest(p_queues, p_room) as w(queue, free) where p_fair ? w.queue
        loop
            select * into shared from gen_durable._fair_candidates(fair_queue.queue, fair_queue.free,
                p_range_queues, p_range_priorities, p_range_from, p_range_from_id, fair_queue.tenants, p_known);
            fair_ids := fair_ids || shared.ids;
            if shared.report is not null then
                report := coalesce(report, '[]') || jsonb_build_array(shared.report);
            end if;
        end loop;
    end if;
    select coalesce(array_agg(c.id order by c.nth), '{}'), array_agg(c.limit_group order by c.nth),
        array_agg(coalesce(c.limit_weight, 1)::float8 order by c.nth), array_agg(c.queue order by c.nth)
    into ids, groups, weights, queues
    from (
        select chosen.*, row_number() over () as nth
        from unnest(p_queues, p_room) as wanted(queue, free)
        cross join lateral (
            select found.*, wanted.queue
            from unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id)
                as range(queue, priority, since, since_id)
            cross join lateral (
                select i.id, i.limit_group, i.limit_weight
                from gen_durable.instances i
                where i.queue = range.queue and i.priority = range.priority
                  and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
                  and (i.eligible_at, i.id) > (range.since, range.since_id)
                  and i.eligible_at <= gen_durable.clock()
                  and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
                order by i.eligible_at, i.id
                limit wanted.free
                for no key update skip locked
            ) found
            where range.queue = wanted.queue
            limit wanted.free
        ) chosen
        where p_fair is null or not p_fair ? wanted.queue
        union all
        select i.id, i.limit_group, i.limit_weight, i.queue, 1000000 + f.nth
        from unnest(fair_ids) with ordinality as f(id, nth)
        join gen_durable.instances i on i.id = f.id
    ) c;
end $$;

-- schema/functions/_choose_candidates.sql
-- Chooses the candidates of a pick that may begin, and returns their ids: those without limits, and
-- those that `_admit` lets begin. The others get the status `awaiting_limit`. Without the locks of
-- the limits, it chooses only instances without limits, and the others stay runnable.
--   called by: _pick_limited      index: as _admit and _park
--   locks: as _admit; the caller has locked the candidates
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._choose_candidates(p_ids bigint[], p_groups text[], p_weights float8[], p_is_locked boolean) returns bigint[]
language plpgsql
as $$
declare
    limited bigint[];
    chosen bigint[];
    admitted bigint[] := '{}';
begin
    select array_agg(c.id), array_agg(c.id) filter (where c.limit_group is null) into limited, chosen
    from unnest(p_ids, p_groups) as c(id, limit_group);
    if p_is_locked and cardinality(chosen) is distinct from cardinality(p_ids) then
        select gen_durable._admit(array_agg(c.id order by c.nth), array_agg(c.limit_group order by c.nth),
                                  array_agg(c.weight order by c.nth), true),
            array_agg(c.id)
        into admitted, limited
        from unnest(p_ids, p_groups, p_weights) with ordinality as c(id, limit_group, weight, nth)
        where c.limit_group is not null;
        if cardinality(admitted) < cardinality(limited) then
            perform gen_durable._park(array(select unnest(limited) except select unnest(admitted)));
        end if;
    end if;
    return coalesce(chosen, '{}') || admitted;
end $$;

-- schema/functions/_wake_limits.sql
-- Lets the next pick try the instances that wait for a limit, after its bounds have changed.
--   called by: set_limit, set_limit_key, reset_limit, resume_limit      index: limit_backlog_pkey
--   locks: the rows of the groups that wait, skipping rows that a pick has locked: that pick tries
--   them now, or every 100 ms
create function gen_durable._wake_limits(p_name text) returns void
language plpgsql
as $$
begin
    update gen_durable.limit_backlog b set ready_at = gen_durable.clock()
    where (b.limit_group, b.queue) in (
        select w.limit_group, w.queue from gen_durable.limit_backlog w
        where p_name = any (w.names) and w.ready_at > gen_durable.clock()
        for no key update skip locked);
end $$;

-- schema/functions/set_limit.sql
-- Changes bounds of a limit: those that p_bounds names, null for no bound. The bounds stay in force
-- until reset_limit. p_bounds has the columns of `limits`: at_once, per_key, rate, period, burst,
-- key_rate, key_period, key_burst. A rate without a burst has a burst of its own size.
-- Steps that run go on; a lower bound lets no further step begin until the number is below it.
--   called by: store::limit::set, SQL      index: limits_pkey; as _wake_limits
--   locks: the row of the limit; as _wake_limits. No pick waits for these locks.
-- Returns false if no worker has declared the limit.
create function gen_durable.set_limit(p_name text, p_bounds jsonb) returns boolean
language plpgsql
as $$
-- planner: pinned
declare
    unknown text;
begin
    select k.key into unknown from jsonb_object_keys(p_bounds) as k(key)
    where k.key <> all (array['at_once', 'per_key', 'rate', 'period', 'burst', 'key_rate', 'key_period', 'key_burst']) limit 1;
    if unknown is not null then
        raise exception 'a limit has no bound %', quote_literal(unknown) using errcode = 'invalid_parameter_value',
            hint = 'the bounds are at_once, per_key, rate, period, burst, key_rate, key_period and key_burst';
    end if;
    update gen_durable.limits l
    set at_once = b.at_once, per_key = b.per_key,
        rate = b.rate, period = case when b.rate is not null then coalesce(b.period, 1) end,
        burst = case when b.rate is not null then case when p_bounds ? 'burst' then b.burst when p_bounds ? 'rate' then b.rate else b.burst end end,
        key_rate = b.key_rate, key_period = case when b.key_rate is not null then coalesce(b.key_period, 1) end,
        key_burst = case when b.key_rate is not null
                         then case when p_bounds ? 'key_burst' then b.key_burst when p_bounds ? 'key_rate' then b.key_rate else b.key_burst end end,
        changed_at = gen_durable.clock()
    from (select (jsonb_populate_record(old, p_bounds)).* from gen_durable.limits old where old.name = p_name) b
    where l.name = p_name;
    if not found then
        return false;
    end if;
    perform gen_durable._wake_limits(p_name);
    return true;
end $$;

-- schema/functions/set_limit_key.sql
-- Sets the bounds of one key of a limit, which replace `per_key` and `key_rate` of the limit for
-- that key: {"at_once": 20, "rate": 100, "period": 60, "burst": 10}. Null removes them.
--   called by: store::limit::set_key, SQL      index: limits_pkey, limit_keys_pkey; as _wake_limits
--   locks: the row of the key; as _wake_limits. No pick waits for these locks.
-- Returns false if no worker has declared the limit.
create function gen_durable.set_limit_key(p_name text, p_key text, p_bounds jsonb) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    if not exists (select from gen_durable.limits l where l.name = p_name) then
        return false;
    end if;
    if p_key = '' or p_key ~ '[\x01-\x1f]' then
        raise exception 'the key of a limit must not be empty or contain control characters' using errcode = 'invalid_parameter_value';
    end if;
    if p_bounds is null then
        delete from gen_durable.limit_keys k where k.name = p_name and k.key = p_key;
    else
        insert into gen_durable.limit_keys as k (name, key, at_once, rate, period, burst)
        select p_name, p_key, b.at_once, b.rate, case when b.rate is not null then coalesce(b.period, 1) end,
            case when b.rate is not null then coalesce(b.burst, b.rate) end
        from jsonb_populate_record(null::gen_durable.limit_keys, p_bounds) b
        on conflict (name, key) do update set
            at_once = excluded.at_once, rate = excluded.rate, period = excluded.period, burst = excluded.burst;
    end if;
    perform gen_durable._wake_limits(p_name);
    return true;
end $$;

-- schema/functions/set_fair.sql
-- Makes a queue fair, or ends that. The tenants of a fair queue share the workers; in other queues
-- instances begin by priority and due time, whatever their tenants. The change stays in force over
-- restarts of workers that declare the queue as fair.
--   called by: store::fair::set_fair, SQL      index: queues_pkey
--   locks: the row of the queue. No pick waits for this lock.
-- Returns whether this changed anything.
create function gen_durable.set_fair(p_queue text, p_fair boolean) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    insert into gen_durable.queues as q (name, fair, fair_changed_at, fair_version)
    values (p_queue::gen_durable.queue_name, p_fair, gen_durable.clock(), 1)
    on conflict (name) do update
    set fair = excluded.fair, fair_changed_at = excluded.fair_changed_at, fair_version = q.fair_version + 1
    where q.fair <> excluded.fair;
    return found;
end $$;

-- schema/functions/set_tenant_share.sql
-- Sets the share of a tenant in a fair queue: how many of its instances begin while one instance of
-- a tenant with a share of 1 begins. Null, or 1, removes the share.
--   called by: store::fair::set_share, SQL      index: queues_pkey
--   locks: the row of the queue. No pick waits for this lock.
-- Returns whether this changed anything.
create function gen_durable.set_tenant_share(p_queue text, p_tenant text, p_share int) returns boolean
language plpgsql
as $$
-- planner: pinned
declare
    shares jsonb;
begin
    if p_share not between 1 and 1000 then
        raise exception 'the share of a tenant is between 1 and 1000, not %', p_share using errcode = 'invalid_parameter_value';
    end if;
    insert into gen_durable.queues (name) values (p_queue::gen_durable.queue_name) on conflict do nothing;
    perform from gen_durable.queues q where q.name = p_queue for no key update;
    select case when coalesce(p_share, 1) = 1 then q.tenant_shares - p_tenant
                else q.tenant_shares || jsonb_build_object(p_tenant::gen_durable.tenant_name, p_share) end
    into shares from gen_durable.queues q where q.name = p_queue;
    if (select count(*) from jsonb_object_keys(shares)) > 1000 then
        raise exception 'a queue has shares for at most 1000 tenants' using errcode = 'program_limit_exceeded';
    end if;
    update gen_durable.queues q set tenant_shares = shares, fair_version = q.fair_version + 1
    where q.name = p_queue and q.tenant_shares <> shares;
    return found;
end $$;

-- schema/functions/reset_limit.sql
-- Gives a limit the bounds that the code declares, and removes the bounds of chosen keys.
--   called by: store::limit::reset, SQL      index: limits_pkey, limit_keys_pkey; as _wake_limits
--   locks: the row of the limit; as _wake_limits. No pick waits for these locks.
-- Returns false if no worker has declared the limit.
create function gen_durable.reset_limit(p_name text) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.limits l
    set at_once = d.at_once, per_key = d.per_key, rate = d.rate, period = d.period, burst = d.burst,
        key_rate = d.key_rate, key_period = d.key_period, key_burst = d.key_burst, changed_at = null
    from (select (jsonb_populate_record(null::gen_durable.limits, old.declared)).* from gen_durable.limits old where old.name = p_name) d
    where l.name = p_name;
    if not found then
        return false;
    end if;
    delete from gen_durable.limit_keys k where k.name = p_name;
    perform gen_durable._wake_limits(p_name);
    return true;
end $$;

-- schema/functions/pause_limit.sql
-- Pauses a limit: no step that takes it begins until resume_limit. Steps that run go on.
--   called by: store::limit::pause, SQL      index: limits_pkey
--   locks: the row of the limit. No pick waits for this lock.
-- Returns false if no worker has declared the limit.
create function gen_durable.pause_limit(p_name text) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.limits l set paused_at = coalesce(l.paused_at, gen_durable.clock()) where l.name = p_name;
    return found;
end $$;

-- schema/functions/resume_limit.sql
-- Ends the pause of a limit, and opens it if a step has closed it.
--   called by: store::limit::resume, SQL      index: limits_pkey; as _wake_limits
--   locks: the row of the limit; as _wake_limits. No pick waits for these locks.
-- Returns false if no worker has declared the limit.
create function gen_durable.resume_limit(p_name text) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.limits l set paused_at = null, closed_until = null where l.name = p_name;
    if not found then
        return false;
    end if;
    perform gen_durable._wake_limits(p_name);
    return true;
end $$;

-- schema/functions/close_limit.sql
-- Closes a limit for some seconds: no step that takes it begins before. For a provider that has
-- answered "wait". A limit that is closed for longer stays so.
--   called by: store::limit::close, SQL      index: limits_pkey
--   locks: the row of the limit. No pick waits for this lock.
-- Returns false if no worker has declared the limit.
create function gen_durable.close_limit(p_name text, p_seconds float8) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.limits l
    set closed_until = greatest(l.closed_until, gen_durable.clock() + make_interval(secs => least(p_seconds, 31622400)))
    where l.name = p_name;
    return found;
end $$;

-- schema/functions/take_rate.sql
-- Takes a weight from the rates of a limit, outside of a step: for a web request that calls the
-- same API as the steps. Returns 0 if it took the weight, or after how many seconds to try again;
-- null if no worker has declared the limit. It takes from the rate of the whole limit and from that
-- of the key, or from none. Bounds of concurrency do not apply: a caller holds no claim.
--   called by: store::limit::take, SQL
--   index: limit_locks_pkey, limit_tokens_pkey; as _limit_room
--   locks: the lock of the limit until the end of the transaction. Commit at once: picks of steps
--   that take the limit wait 50 ms for it, and then leave those steps.
create function gen_durable.take_rate(p_name text, p_key text default '', p_weight float8 default 1) returns float8
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    wait float8;
begin
    if p_weight < 0 then
        raise exception 'the weight must not be negative' using errcode = 'invalid_parameter_value';
    end if;
    perform from gen_durable.limit_locks l where l.name = p_name for no key update;
    if not found then
        return null;
    end if;
    -- As in `_serve_group`: a clock that was set back must not stop the rate.
    update gen_durable.limit_tokens t set at = gen_durable.clock()
    where t.name = p_name and t.key in ('', p_key) and t.at > gen_durable.clock() + interval '5 seconds';
    -- Callers of a paused limit try again every second.
    select max(case when r.next_at > gen_durable.clock()
                    then extract(epoch from least(r.next_at, greatest(gen_durable.clock() + interval '1 s', nullif(r.next_at, 'infinity'))) - gen_durable.clock())::float8
                    when r.per_second is null then 0
                    else greatest(0, least(p_weight, r.burst) - r.tokens) / r.per_second end)
    into wait
    from gen_durable._limit_room(array[p_name, p_name], array['', p_key]) r;
    if wait > 0 then
        return wait;
    end if;
    insert into gen_durable.limit_tokens as t (name, key, tokens, at)
    select distinct r.name, r.key, r.tokens - p_weight, gen_durable.clock()
    from gen_durable._limit_room(array[p_name, p_name], array['', p_key]) r
    where r.per_second is not null
    on conflict (name, key) do update set tokens = excluded.tokens, at = greatest(t.at, excluded.at);
    return 0;
end $$;

-- schema/functions/adjust_rate.sql
-- Corrects what a start has taken from the rates of a limit: a positive p_more takes more, a
-- negative one gives back. For a weight that is known only after the call.
--   called by: store::limit::adjust, SQL
--   index: limit_locks_pkey, limit_tokens_pkey; as _limit_room
--   locks: the lock of the limit until the end of the transaction, as take_rate
-- Returns false if no worker has declared the limit.
create function gen_durable.adjust_rate(p_name text, p_key text, p_more float8) returns boolean
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    perform from gen_durable.limit_locks l where l.name = p_name for no key update;
    if not found then
        return false;
    end if;
    insert into gen_durable.limit_tokens as t (name, key, tokens, at)
    select distinct r.name, r.key, least(r.burst, r.tokens - p_more), gen_durable.clock()
    from gen_durable._limit_room(array[p_name, p_name], array['', p_key]) r
    where r.per_second is not null
    on conflict (name, key) do update set tokens = excluded.tokens, at = greatest(t.at, excluded.at);
    return true;
end $$;

-- schema/functions/_collect_rates.sql
-- Deletes rows of rates that are full again: a rate without a row is full. Reads up to p_limit rows
-- after (p_name, p_key), and returns the last one that it read, or null at the end of the table,
-- with the number of deleted rows.
--   called by: store::limit::collect      index: limit_tokens_pkey, limit_locks_pkey; as
--   _limit_room
--   locks: the limits of the rows, skipping those that a pick or a caller has locked, and then the
--   rows that it deletes
create function gen_durable._collect_rates(p_limit int, p_name text, p_key text, out name text, out key text, out deleted bigint)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    names text[];
    keys text[];
    locked text[];
begin
    select array_agg(t.name order by t.name, t.key), array_agg(t.key order by t.name, t.key) into names, keys
    from (select t.name, t.key from gen_durable.limit_tokens t
          where (t.name, t.key) > (p_name, p_key) order by t.name, t.key limit p_limit) t;
    locked := array(select l.name from gen_durable.limit_locks l where l.name = any (names) order by l.name for no key update skip locked);
    delete from gen_durable.limit_tokens t
    using gen_durable._limit_room(names, keys) r
    where t.name = r.name and t.key = r.key and r.tokens >= r.burst and r.name = any (locked);
    get diagnostics deleted = row_count;
    if cardinality(names) = p_limit then
        name := names[p_limit];
        key := keys[p_limit];
    end if;
end $$;

-- schema/functions/_claim.sql
-- Claims instances for a worker and returns them. The caller has locked their rows.
--   called by: _pick_limited, _pick_suspect
--   index: instances_pkey, signals_inbox; as _children_of      locks: nothing further
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._claim(p_ids bigint[], p_waited boolean, p_worker uuid, p_lease_seconds float8)
returns setof gen_durable.claimed
language plpgsql
as $$
begin
    return query
    update gen_durable.instances i
    set status = 'executing', locked_by = p_worker,
        lease_expires_at = statement_timestamp() + make_interval(secs => p_lease_seconds),
        claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
    from (select c.id from unnest(p_ids) as c(id) limit cardinality(p_ids)) chosen
    where i.id = chosen.id
    returning i.id, i.machine, i.machine_version, i.step, i.data::text, i.state::text, i.attempt,
        i.claim_epoch, i.step_seq, i.step_entry_seq, i.queue, i.priority, i.eligible_at,
        i.tenant, i.traceparent, i.partition_key is not null or i.lane_key is not null, i.crash_count,
        null::timestamptz, null::text[], i.awaits,
        (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
         from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null),
        case when i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end,
        i.parent_id, null::bigint, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens'), null::int[],
        i.limit_group, p_waited;
end $$;

-- schema/functions/_find_suspect.sql
-- Locks at most one suspect (an instance with a crash_count of two or more) that is due in these
-- queues, and returns it with its limits. The columns are null if there is none.
--   called by: _pick_suspect, _pick_limited      index: instances_suspects
--   locks: the suspect, FOR NO KEY UPDATE SKIP LOCKED
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._find_suspect(p_queues text[], p_known text[], out id bigint, out limit_group text, out weight float8)
language plpgsql
as $$
#variable_conflict use_column
begin
    select found.id, found.limit_group, coalesce(found.limit_weight, 1)::float8 into id, limit_group, weight
    from unnest(p_queues) as wanted(queue)
    cross join lateral (
        select i.id, i.limit_group, i.limit_weight
        from gen_durable.instances i
        where i.queue = wanted.queue and i.status = 'runnable' and i.crash_count >= 2 and not i.partition_waiting
          and i.eligible_at <= gen_durable.clock()
          and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
        order by i.eligible_at, i.id
        limit 1
        for no key update skip locked
    ) found
    where not exists (select from gen_durable.queues q where q.name = wanted.queue and q.paused_at is not null)
    limit 1;
end $$;

-- schema/functions/_pick_suspect.sql
-- Claims at most one suspect and returns it. A worker runs one suspect at a time, so that a further
-- crash can be attributed to that suspect.
--   called by: _pick      index: as _find_suspect and _claim
--   locks: the suspect, FOR NO KEY UPDATE SKIP LOCKED
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._pick_suspect(p_queues text[], p_known text[], p_worker uuid, p_lease_seconds float8)
returns setof gen_durable.claimed
language plpgsql
as $$
declare
    suspect record;
begin
    select * into suspect from gen_durable._find_suspect(p_queues, p_known);
    if suspect.id is not null then
        return query select * from gen_durable._claim(array[suspect.id], false, p_worker, p_lease_seconds);
    end if;
end $$;

-- schema/functions/_pick_limited.sql
-- Claims instances as `_pick` does, if a limit is declared or a queue is fair. Instances that may
-- not begin get the status `awaiting_limit`, and leave the index of the pickers.
--   called by: _pick
--   index: as its parts
--   locks: the candidates, FOR NO KEY UPDATE SKIP LOCKED, in (priority, eligible_at, id); then rows
--   of limit_locks by name, for at most 50 ms; then rows of limit_backlog and instances that wait,
--   skipping locked rows. No transaction that has locked a limit waits for another lock.
-- Counting claims is exact, because only a transaction with the lock of a limit adds a claim to the
-- limit, and reads the claims after it got the lock. Claims that end meanwhile make the count too
-- large, never too small. A row without an id tells the picker that it has to read the same range
-- again: the pick has read as many candidates as it may claim and has not claimed all of them, it
-- has left candidates because groups took their room, or it did not get the lock of a limit.
-- Another row without an id has the reports of `_fair_candidates` as `data`.
create function gen_durable._pick_limited(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    p_known text[], p_worker uuid, p_lease_seconds float8, p_paused text[], p_next_due timestamptz, p_takes_suspect boolean, p_freed text[],
    p_fair jsonb
) returns setof gen_durable.claimed
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    open_queues text[] := array(select q from unnest(p_queues) q where q <> all (coalesce(p_paused, '{}')));
    room int[] := array(select w.free from unnest(p_queues, p_room) as w(queue, free) where w.queue = any (open_queues));
    candidates record;
    suspect record;
    backlog record;
    is_locked boolean;
    served int[] := array_fill(0, array[cardinality(open_queues)]);
    quantum int;
    chosen bigint[];
    claimed_count int;
    left_some boolean;
    report gen_durable.claimed;
    again gen_durable.claimed;
begin
    if open_queues = '{}' or not (p_takes_suspect or coalesce(p_next_due <= gen_durable.clock(), false)
           or coalesce(gen_durable._limits_due(open_queues, '{}') <= gen_durable.clock(), false)
           or jsonb_path_exists(p_fair, '$.*[*]')
           or p_freed <> '{}' and exists (select from gen_durable.limit_backlog b where b.held_on is not null)) then
        return;
    end if;
    select * into candidates
    from gen_durable._candidates(open_queues, room, p_range_queues, p_range_priorities, p_range_from, p_range_from_id, p_known, p_fair);
    select * into suspect from gen_durable._find_suspect(case when p_takes_suspect then open_queues else '{}' end, p_known);
    select array_agg(g.limit_group) as groups, array_agg(g.queue) as queues, max(g.retry_seconds) as retry
    into backlog from gen_durable._due_groups(open_queues, p_freed) g;
    is_locked := gen_durable._lock_limits(candidates.groups || backlog.groups || suspect.limit_group);
    for place in 1..case when is_locked then coalesce(cardinality(backlog.groups), 0) else 0 end loop
        -- The groups share the room of their queue. If other instances are due in the queue, half
        -- of the room is left for them; of a single place, every second pick on average.
        select case when w.queue = any (candidates.queues)
                    then (w.free + extract(microseconds from gen_durable.clock())::int % 2) / 2 else w.free end - w.served
        into quantum
        from unnest(open_queues, room, served) as w(queue, free, served)
        where w.queue = backlog.queues[place] and w.served < w.free;
        if coalesce(quantum, 0) <= 0 then
            -- Another worker, or the next pick, has to try this group. It is due, and no longer
            -- among the groups that the end of a claim finds: it must not hide those.
            update gen_durable.limit_backlog b set ready_at = least(b.ready_at, gen_durable.clock()), held_on = null
            where (b.limit_group, b.queue) in (
                select w.limit_group, w.queue from gen_durable.limit_backlog w
                where w.limit_group = backlog.groups[place] and w.queue = backlog.queues[place]
                  and (w.ready_at > gen_durable.clock() or w.held_on is not null)
                for no key update skip locked);
            continue;
        end if;
        quantum := least(quantum, greatest(1, quantum / (cardinality(backlog.groups) - place + 1)));
        chosen := gen_durable._serve_group(backlog.groups[place], backlog.queues[place], quantum, p_known,
            make_interval(secs => backlog.retry + place * 1e-6));
        continue when chosen = '{}';
        return query select * from gen_durable._claim(chosen, true, p_worker, p_lease_seconds);
        served[array_position(open_queues, backlog.queues[place])] :=
            served[array_position(open_queues, backlog.queues[place])] + cardinality(chosen);
    end loop;
    -- Leaves the candidates beyond the room that is left.
    select array_agg(c.id order by c.nth) as ids, array_agg(c.limit_group order by c.nth) as groups, array_agg(c.weight order by c.nth) as weights
    into backlog
    from (select c.*, w.free - w.served as room_left, row_number() over (partition by c.queue order by c.nth) as place
          from unnest(candidates.ids, candidates.groups, candidates.weights, candidates.queues) with ordinality as c(id, limit_group, weight, queue, nth)
          join unnest(open_queues, room, served) as w(queue, free, served) on w.queue = c.queue) c
    where c.place <= c.room_left;
    claimed_count := 0;
    left_some := cardinality(candidates.ids) > coalesce(cardinality(backlog.ids), 0);
    if backlog.ids is not null then
        chosen := gen_durable._choose_candidates(backlog.ids, backlog.groups, backlog.weights, is_locked);
        claimed_count := cardinality(chosen);
        return query select * from gen_durable._claim(chosen, false, p_worker, p_lease_seconds);
    end if;
    if suspect.id is not null and (suspect.limit_group is null or is_locked and cardinality(
           gen_durable._admit(array[suspect.id], array[suspect.limit_group], array[suspect.weight], false)) > 0) then
        return query select * from gen_durable._claim(array[suspect.id], false, p_worker, p_lease_seconds);
    elsif suspect.id is not null then
        -- The next pick tries the suspects behind this one.
        update gen_durable.instances i set eligible_at = gen_durable.clock() + interval '1 second' where i.id = suspect.id;
    end if;
    if candidates.report is not null then
        report.data := candidates.report;
        return next report;
    end if;
    if not is_locked or left_some or claimed_count < cardinality(candidates.ids) and exists (
           select from unnest(open_queues, room) as w(queue, free)
           where w.free <= (select count(*) from unnest(candidates.queues) as c(queue) where c.queue = w.queue)) then
        again.waited := true;
        again.keyed := not is_locked;
        return next again;
    end if;
end $$;

-- schema/functions/_fleet.sql
-- Returns three numbers about the group of p_worker: how many workers share its polls, how many of
-- them come before it in the order of ids, and how many milliseconds ago a worker of the group last
-- found work (at most 1,000,000). The group are the workers with a valid lease that poll and can
-- claim every instance and fire every schedule of p_worker. With p_found_work, the function first
-- records that p_worker has found work. The result is a hint for the rate of polls and of upkeep.
--   called by: _pick      index: workers_pkey, and one row per process
--   locks: with p_found_work the row of p_worker, FOR NO KEY UPDATE SKIP LOCKED: the worker may be
--   renewing its lease
create function gen_durable._fleet(p_worker uuid, p_found_work boolean default false) returns int[]
language plpgsql
as $$
-- planner: pinned
declare
    own gen_durable.workers;
begin
    if p_found_work then
        update gen_durable.workers w set found_work_at = statement_timestamp()
        where w.id = (select mine.id from gen_durable.workers mine where mine.id = p_worker for no key update skip locked);
    end if;
    select w.* into own from gen_durable.workers w where w.id = p_worker;
    return (
        select array[count(*), count(*) filter (where w.id < p_worker),
            least(1000000, extract(epoch from statement_timestamp() - max(w.found_work_at)) * 1000)]::int[]
        from gen_durable.workers w
        where w.lease_expires_at > statement_timestamp() and (w.polls or w.id = p_worker)
          -- Most fleets run one build: equal arrays are compared faster than contained ones.
          and (w.machines = own.machines or w.machines @> own.machines)
          and (w.queues = own.queues or w.queues @> own.queues)
          and (w.schedules = own.schedules or w.schedules @> own.schedules));
end $$;

-- schema/functions/_next_due.sql
-- Returns the earliest due time after now of the instances in these ranges (queue,
-- priority), up to the last date that the client can decode.
--   called by: _pick      index: instances_pick, one probe per range      locks: nothing
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._next_due(p_queues text[], p_priorities smallint[]) returns timestamptz
language plpgsql stable
as $$
begin
    return (
        select min(due.eligible_at)
        from unnest(p_queues, p_priorities) as range(queue, priority)
        cross join lateral (
            select i.eligible_at
            from gen_durable.instances i
            where i.queue = range.queue and i.priority = range.priority
              and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
              and i.eligible_at > gen_durable.clock() and i.eligible_at <= timestamptz '9999-12-30 22:00:00+00'
            order by i.eligible_at
            limit 1
        ) due);
end $$;

-- schema/functions/_pick.sql
-- Claims runnable instances for every queue in which the worker has room, in one statement, and
-- returns them. It does not claim an instance at a step that the worker's build does not know: a
-- worker that knows the step claims it.
--   called by: store::pick::claim
--   index: instances_pick, instances_pkey, signals_inbox; as its parts
--   locks: instances FOR NO KEY UPDATE SKIP LOCKED, in (priority, eligible_at, id): it waits for no
--   lock
-- The p_range arrays are ranges (queue, priority, from, from_id). This worker has already read
-- everything up to (from, from_id), so the scan begins there, and does not read dead index entries
-- of the instances that were claimed before. The last row has no id: it carries the time, the next
-- due time, the paused queues, the result of `_place_arrivals` and, with p_counts_fleet, the group
-- of the worker (see `_fleet`).
-- p_fair has the tenants of fair queues that the worker knows (see `_fair_candidates`), an object
-- with one entry per fair queue. The last row has the sum of `queues.fair_version` as `marks`.
-- p_freed has the limits, as groups (see `_limit_pairs`), of the claims that the worker has ended
-- since its last pick: instances that wait for these limits may begin.
create function gen_durable._pick(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    p_known text[], p_worker uuid, p_lease_seconds float8, p_suspects int,
    p_counts_fleet boolean default false, p_found_work boolean default false, p_freed text[] default '{}', p_fair text default null
) returns setof gen_durable.claimed
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    claimed bigint;
    has_suspect boolean;
    has_groups boolean;
    info gen_durable.claimed;
begin
    if not gen_durable._is_read_committed() then perform gen_durable._require_read_committed(); end if;
    info.predecessor_id := gen_durable._place_arrivals();
    -- Most picks of a fleet find nothing. One probe per range finds the first entry after the
    -- watermark, so that such a pick starts none of the statements that claim instances.
    select (select min(first.eligible_at)
            from unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id) as range(queue, priority, since, since_id)
            cross join lateral (
                select i.eligible_at
                from gen_durable.instances i
                where i.queue = range.queue and i.priority = range.priority
                  and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
                  and (i.eligible_at, i.id) > (range.since, range.since_id)
                  and i.eligible_at <= timestamptz '9999-12-30 22:00:00+00'
                order by i.eligible_at, i.id
                limit 1
            ) first),
           p_suspects > 0 and exists (select from gen_durable.instances i
            where i.queue = any (p_queues) and i.status = 'runnable' and i.crash_count >= 2 and not i.partition_waiting),
           q.paused, array[q.fair_version], p_fair is not null or exists (select from gen_durable.limit_locks)
    into info.next_due, has_suspect, info.paused, info.marks, has_groups
    from (select array_agg(q.name) filter (where q.paused_at is not null) as paused, coalesce(sum(q.fair_version), 0)::bigint as fair_version
          from gen_durable.queues q where q.name = any (p_queues)) q;
    if has_groups then
        return query select l.* from gen_durable._pick_limited(p_queues, p_room, p_range_queues, p_range_priorities, p_range_from,
            p_range_from_id, p_known, p_worker, p_lease_seconds, info.paused, info.next_due, has_suspect, p_freed, p_fair::jsonb) l;
        info.next_due := least(gen_durable._next_due(p_range_queues, p_range_priorities), gen_durable._limits_due(p_queues, info.paused));
    elsif info.next_due <= gen_durable.clock() then
        return query
        with candidate as materialized (
            select chosen.id
            from unnest(p_queues, p_room) as wanted(queue, free)
            cross join lateral (
                select found.id
                from unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id)
                    as range(queue, priority, since, since_id)
                cross join lateral (
                    select i.id
                    from gen_durable.instances i
                    where i.queue = range.queue and i.priority = range.priority
                      and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
                      and (i.eligible_at, i.id) > (range.since, range.since_id)
                      and i.eligible_at <= gen_durable.clock()
                      and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
                    order by i.eligible_at, i.id
                    limit wanted.free
                    for no key update skip locked
                ) found
                where range.queue = wanted.queue
                limit wanted.free
            ) chosen
            where wanted.queue <> all (coalesce(info.paused, '{}'))
        )
        update gen_durable.instances i
        set status = 'executing', locked_by = p_worker,
            lease_expires_at = statement_timestamp() + make_interval(secs => p_lease_seconds),
            claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
        from candidate
        where i.id = candidate.id
        returning i.id, i.machine, i.machine_version, i.step, i.data::text, i.state::text, i.attempt,
            i.claim_epoch, i.step_seq, i.step_entry_seq, i.queue, i.priority, i.eligible_at,
            i.tenant, i.traceparent, i.partition_key is not null or i.lane_key is not null, i.crash_count,
            null::timestamptz, null::text[], i.awaits,
            (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
             from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null),
            case when i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end,
            i.parent_id, null::bigint, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens'), null::int[], null::text, false;
        get diagnostics claimed = row_count;
        -- If the pick claimed as many instances as it asked for, the next one may be due already.
        info.next_due := case when claimed < (select coalesce(sum(free), 0) from unnest(p_room) as free)
            then gen_durable._next_due(p_range_queues, p_range_priorities) end;
    end if;
    if has_suspect and not has_groups then
        return query select * from gen_durable._pick_suspect(p_queues, p_known, p_worker, p_lease_seconds);
    end if;
    info.fleet := case when p_counts_fleet then gen_durable._fleet(p_worker, p_found_work) end;
    info.eligible_at := gen_durable.clock();
    info.keyed := false;
    return next info;
end $$;

-- schema/functions/_next_claim.sql
-- Returns when a pick for these ranges may claim an instance: the earliest due time, which may have
-- passed; 1970 if a pick may place an instance now; or null. A worker without work calls this
-- function instead of `_pick`: it costs about a quarter, which counts when a hundred workers at
-- rest poll once a second each.
--   called by: store::pick::next_claim      locks: nothing
--   index: instances_pick, one probe per range; instances_arrival_no, one probe; with p_limited
--   limit_backlog_ready, one probe per queue
-- The ranges are those of `_pick`, and p_placed_to is the arrival number that the last pick of this
-- worker returned: it had placed everything up to that number. A worker that has declared limits
-- passes p_limited. The function does not read suspects, which wait for the next pick: a worker at
-- rest picks whenever it counts its group. A wrong answer costs an empty pick: a queue may be
-- paused, or a step unknown.
-- Most workers have one range, so one plain query probes that range and the arrivals. A query over
-- unnested ranges would cost a third more, although it is shorter.
create function gen_durable._next_claim(
    p_queues text[], p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    p_placed_to bigint, p_limited boolean
) returns timestamptz
language plpgsql stable
as $$
-- planner: pinned, generic
declare
    due timestamptz;
    earliest timestamptz;
begin
    select least(
        case when exists (select from gen_durable.instances i where i.arrival_no > p_placed_to) then timestamptz 'epoch' end,
        (select i.eligible_at from gen_durable.instances i
         where i.queue = p_range_queues[1] and i.priority = p_range_priorities[1]
           and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
           and (i.eligible_at, i.id) > (p_range_from[1], p_range_from_id[1])
           and i.eligible_at <= timestamptz '9999-12-30 22:00:00+00'
         order by i.eligible_at, i.id limit 1))
    into earliest;
    for n in 2..cardinality(p_range_queues) loop
        select i.eligible_at into due from gen_durable.instances i
        where i.queue = p_range_queues[n] and i.priority = p_range_priorities[n]
          and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
          and (i.eligible_at, i.id) > (p_range_from[n], p_range_from_id[n])
          and i.eligible_at <= timestamptz '9999-12-30 22:00:00+00'
        order by i.eligible_at, i.id limit 1;
        earliest := least(earliest, due);
    end loop;
    if p_limited and exists (select from gen_durable.limit_backlog b where b.queue = any (p_queues)) then
        return timestamptz 'epoch';
    end if;
    return earliest;
end $$;

-- schema/functions/_set_aside_refused.sql
-- Finds the candidates of a failed pick that the database does not let a worker claim, and sets
-- them aside as `stuck` with the error as reason. Since one statement claims for all queues, one
-- such instance would make every pick fail.
--   called by: store::pick::set_aside_refused
--   index: instances_pick, instances_suspects, instances_pkey, limit_backlog_ready,
--   instances_limit_waiting; as _place_new, _tenant_instances
--   locks: as _place_new, _tenant_instances; the candidates, FOR NO KEY UPDATE SKIP LOCKED, until
--   the end of the statement
-- Claims each candidate in a subtransaction and rolls the subtransaction back. Raises an error that
-- concerns the server and not the row.
create function gen_durable._set_aside_refused(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[], p_known text[],
    p_fair jsonb
) returns table (id bigint, machine text, step text, attempt int, reason text)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    candidate bigint;
begin
    -- Repeats the placement of the failed pick, which was rolled back: without this placement, an
    -- instance that has just arrived would not be a candidate.
    perform gen_durable._place_new(1000);
    for candidate in
        select found.id
        from unnest(p_queues, p_room) as wanted(queue, free)
        cross join unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id) as range(queue, priority, since, since_id)
        cross join lateral (
            select i.id from gen_durable.instances i
            where i.queue = range.queue and i.priority = range.priority
              and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
              and (i.eligible_at, i.id) > (range.since, range.since_id) and i.eligible_at <= gen_durable.clock()
              and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
            order by i.eligible_at, i.id
            limit wanted.free
            for no key update skip locked
        ) found
        where range.queue = wanted.queue
        union all
        select t.id from gen_durable._tenant_instances(p_queues, p_room, p_fair, p_known) t
        union all
        select found.id
        from unnest(p_queues) as wanted(queue)
        cross join lateral (
            select i.id from gen_durable.instances i
            where i.queue = wanted.queue and i.status = 'runnable' and i.crash_count >= 2 and not i.partition_waiting
              and i.eligible_at <= gen_durable.clock()
              and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
            order by i.eligible_at, i.id
            limit 1
            for no key update skip locked
        ) found
        union all
        select found.id
        from unnest(p_queues, p_room) as wanted(queue, free)
        cross join lateral (
            select b.limit_group from gen_durable.limit_backlog b where b.queue = wanted.queue order by b.ready_at limit 200
        ) backlog
        cross join lateral (
            select i.id from gen_durable.instances i
            where i.status = 'awaiting_limit' and i.limit_group = backlog.limit_group and i.queue = wanted.queue
              and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
            order by i.limit_group, i.queue, i.priority, i.eligible_at, i.id
            limit wanted.free
            for no key update skip locked
        ) found
    loop
        begin
            update gen_durable.instances i
            set status = 'executing', locked_by = gen_random_uuid(), claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
            where i.id = candidate;
            perform i.data::text, i.state::text, gen_durable._inbox_of(i.id),
                case when i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end
            from gen_durable.instances i where i.id = candidate;
            raise exception using errcode = 'GD000', message = 'rolls the claim back';
        exception
            when sqlstate 'GD000' then
                null;
            when others then
                if left(sqlstate, 2) not in ('21', '22', '23', '44', '54', 'P0') then
                    raise;
                end if;
                return query
                update gen_durable.instances i
                set status = 'stuck', last_error = left('a pick of this instance was refused: ' || sqlerrm, 8192),
                    claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock(),
                    -- The stuck instance draws an arrival number, so that `_place` chooses the next
                    -- holder of its partition.
                    arrival_no = case when i.partition_key is not null then nextval('gen_durable.arrival_numbers') else i.arrival_no end
                where i.id = candidate
                returning i.id, i.machine, i.step, i.attempt, i.last_error;
                perform gen_durable._record_history(array[candidate], 'stuck');
        end;
    end loop;
end $$;

-- schema/functions/_write_step_results.sql
-- Writes step results into their instances, one array entry per result, all in one statement.
--   called by: store::step_results, _write_keyed_step_results, _write_step_results_with_effects
--   index: instances_pkey, signals_inbox
--   locks: instances by id, in the order of the arrays (the caller sorts them), for at most
--   p_lock_timeout
-- The update finds a row by (id, claim_epoch, step_seq). There is no condition on the status: the
-- epoch implies the claim, and a literal would allow a scan of the index of executing rows. A value
-- of p_attempt_changes below 0 means that the result enters a step; the attempts of that step begin
-- at 0. An array may be empty if every value is null (or 0), which saves the copy of its values.
-- Returns the ids of the updated instances; the worker has lost its claim on the others.
create function gen_durable._write_step_results(
    p_ids bigint[], p_epochs bigint[], p_seqs bigint[], p_statuses text[], p_versions int[],
    p_steps text[], p_data text[], p_states text[], p_results text[], p_errors text[],
    p_attempt_changes int[], p_delays float8[], p_lock_timeout text
) returns table (id bigint, inbox text, children text)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
begin
    if p_lock_timeout is not null then
        perform gen_durable._require_read_committed();
        perform set_config('lock_timeout', p_lock_timeout, true);
    end if;
    -- A new connection plans the update with empty arrays (warm.sql). It does not do so while the
    -- table is empty: if Postgres knows from a vacuum that the table is empty, it would plan a scan
    -- of the whole primary key, and keep that plan while the table grows.
    if coalesce(cardinality(p_ids), 0) = 0 and not exists (select from gen_durable.instances) then
        return;
    end if;
    -- Ensures that the results are durable before anything that depends on them begins, even if the
    -- role or the database turns synchronous_commit off. This holds for a step's own transaction
    -- too.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    return query
    update gen_durable.instances i
    set status = e.status,
        machine_version = coalesce(e.version, i.machine_version),
        step = coalesce(e.step, i.step),
        data = case when e.step is null then i.data else e.data::jsonb end,
        state = coalesce(e.state::jsonb, i.state),
        result = e.result::jsonb,
        last_error = case when e.error is not null then e.error
                          when e.attempt_change < 0 or e.status = 'done' then null
                          else i.last_error end,
        attempt = case when e.attempt_change < 0 then 0 else i.attempt + coalesce(e.attempt_change, 0) end,
        -- A retry that the step asked for has no error, and does not count as a failure of the
        -- step.
        failures = case when e.attempt_change < 0 then 0 when e.attempt_change > 0 and e.error is not null then i.failures + 1 else i.failures end,
        step_entry_seq = case when e.attempt_change < 0 then i.step_seq + 1 else i.step_entry_seq end,
        -- A retry keeps `awaits`, since its next run receives the same signals. A result that
        -- enters a step or settles the instance clears `awaits`.
        awaits = case when e.attempt_change < 0 or e.status in ('done', 'failed', 'cancelled') then null else i.awaits end,
        -- An instance with a partition key that ends a step waits behind all others of that key. An
        -- instance in a lane that settles leaves the lane, unless it has failed and blocks the
        -- lane.
        partition_waiting = e.status = 'runnable' and i.partition_key is not null,
        in_lane = i.in_lane and (e.status not in ('done', 'failed', 'cancelled') or (e.status = 'failed' and i.lane_blocks)),
        -- A run-ahead commit changes no indexed column, so the new version of the row stays on its
        -- page, and no index is written.
        eligible_at = case when e.status = 'runnable'
                           then gen_durable.clock() + make_interval(secs => coalesce(e.delay, 0)) else i.eligible_at end,
        step_seq = i.step_seq + 1,
        claim_epoch = case when e.status = 'executing' then i.claim_epoch else i.claim_epoch + 1 end,
        crash_count = 0,
        locked_by = case when e.status = 'executing' then i.locked_by end,
        lease_expires_at = case when e.status = 'executing' then i.lease_expires_at end,
        settled_at = case when e.status in ('done', 'failed', 'cancelled') then gen_durable.clock() end,
        updated_at = gen_durable.clock()
    from (select * from unnest(p_ids, p_epochs, p_seqs, p_statuses::gen_durable.durable_status[], p_versions, p_steps, p_data,
                               p_states, p_results, p_errors, p_attempt_changes, p_delays)
              as r(id, epoch, seq, status, version, step, data, state, result, error, attempt_change, delay)
          -- Postgres expects one row of a LIMIT by a parameter, and so looks up each row by its id,
          -- also if it knows of few rows in the table.
          limit cardinality(p_ids)) e
    where i.id = e.id and i.claim_epoch = e.epoch and i.step_seq = e.seq
    -- Returns the inbox of each instance that runs ahead, with the signals that arrived during its
    -- last step.
    returning i.id,
        case when e.status = 'executing' then (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
         from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null) end,
        case when e.status = 'executing' and i.join_generation > 0
             then gen_durable._children_of(i.id, i.join_generation) end;
end $$;

-- schema/functions/_one_in.sql
-- Returns true for about one in p_n numbers, and always for the same numbers. Functions use it for
-- work that they do only now and then. They pass a number of the instance and do not use random(),
-- so that a commit that is sent twice does the same work. The function hashes the number, so that
-- p_n does not coincide with a pattern in which an application enqueues instances.
--   called by: _promote_successors, _partition_successors      index: none      locks: nothing
-- The function is IMMUTABLE and has no SET clause, so that the planner inlines it.
create function gen_durable._one_in(p_n int, p_number bigint) returns boolean
    language sql immutable parallel safe
    as $$ select hashint8(p_number) % p_n = 0 $$;

-- schema/functions/_partition_successors.sql
-- Returns the successors under the partition keys of instances that have ended a step: their ids,
-- for each the instance that ended the step, and the queue in which a worker may run the successor
-- at once (null if no worker may). An instance that ended a step and has not settled waits for its
-- partition again, and may be its own successor.
--   called by: _promote_successors      index: instances_pkey, partition_cursors_pkey; as _next_in_partition
--   locks: partition cursors; this transaction has already updated the holders of these partitions
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._partition_successors(p_ids bigint[], out ids bigint[], out freed bigint[], out queues text[])
language plpgsql
as $$
#variable_conflict use_column
declare
    keyed_ids bigint[];
    raising bigint[];
begin
    keyed_ids := array(select i.id from gen_durable.instances i
                       where i.id = any (p_ids) and i.partition_key is not null and i.status <> 'executing');
    with next_one as materialized (
        -- At most one successor per ended instance runs at once. So if the ended instance has a
        -- lane too, the queue of its partition successor is null.
        select i.id as freed, gen_durable._next_in_partition(i.tenant, i.partition_key) as id,
            case when i.lane_key is null then i.queue end as queue,
            -- One ended step in twenty raises the cursor of its partition.
            gen_durable._one_in(20, i.id + i.step_seq) as raises
        from gen_durable.instances i where i.id = any (keyed_ids)
    )
    select array_agg(n.id), array_agg(n.freed), array_agg(n.queue), array_agg(n.freed) filter (where n.raises)
    into ids, freed, queues, raising
    from next_one n
    where n.id is not null;
    if cardinality(keyed_ids) > coalesce(cardinality(ids), 0) then
        -- Deletes the rows of `partition_cursors` for partitions for which no instance waits.
        delete from gen_durable.partition_cursors t using gen_durable.instances i
        where i.id = any (keyed_ids) and (freed is null or i.id <> all (freed))
          and t.tenant = i.tenant and t.key = i.partition_key;
    end if;
    if raising is not null then
        -- Raises partition cursors to the first instance that waits now, so that the next scan of
        -- the partition does not read dead index entries of instances that waited before.
        insert into gen_durable.partition_cursors as t (tenant, key, priority, at, id)
        select i.tenant, i.partition_key, first.priority, first.eligible_at, first.id
        from gen_durable.instances i
        left join gen_durable.partition_cursors f on f.tenant = i.tenant and f.key = i.partition_key
        cross join lateral (
            select w.priority, w.eligible_at, w.id from gen_durable.instances w
            where w.tenant = i.tenant and w.partition_key = i.partition_key and w.partition_waiting
              and (w.priority, w.eligible_at, w.id) >= (coalesce(f.priority, '-32768'::smallint), coalesce(f.at, '-infinity'), coalesce(f.id, 0))
            order by w.tenant, w.partition_key, w.priority, w.eligible_at, w.id
            limit 1) first
        where i.id = any (raising)
        on conflict (tenant, key) do update set priority = excluded.priority, at = excluded.at, id = excluded.id;
    end if;
end $$;

-- schema/functions/_claim_successors.sql
-- Claims the successors in lanes and partitions that the calling worker may run at once, and
-- returns them. `_release_successors` makes the other successors runnable.
--   called by: _promote_successors      index: instances_pkey, signals_inbox; as _children_of
--   locks: the successors
-- p_freed names the ended instance of each successor, and p_queues the queue in which the worker
-- may run the successor (null: it may not). It runs under the planner settings of its callers (see
-- schema/planner.sql).
create function gen_durable._claim_successors(
    p_ids bigint[], p_freed bigint[], p_queues text[], p_run_successors_of bigint[], p_worker uuid, p_lease_seconds float8, p_known text[]
) returns setof gen_durable.claimed
language plpgsql
as $$
begin
    return query
    update gen_durable.instances i
    set status = 'executing', locked_by = p_worker, partition_waiting = false,
        lease_expires_at = statement_timestamp() + make_interval(secs => p_lease_seconds),
        claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
    from unnest(p_ids, p_freed, p_queues) as n(id, freed, queue)
    -- A plain `partition_waiting` or `in_lane` would allow Postgres to plan this update as a scan
    -- of the index of all waiting instances or of all lanes, if it plans the statement while that
    -- index is empty. The `or` prevents both scans. A successor that was cancelled since the caller
    -- found it meets neither condition.
    where i.id = n.id and n.freed = any (p_run_successors_of) and (i.partition_waiting or i.status = 'queued' and i.in_lane)
      and i.queue = n.queue and i.eligible_at <= gen_durable.clock() and i.crash_count < 2
      -- Only a pick takes limits: it holds their locks. Only a pick shares a queue between tenants.
      and i.limit_group is null and not i.fair
      and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
      and not exists (select from gen_durable.queues q where q.name = n.queue and q.paused_at is not null)
    returning i.id, i.machine, i.machine_version, i.step, i.data::text, i.state::text, i.attempt,
        i.claim_epoch, i.step_seq, i.step_entry_seq, i.queue, i.priority, i.eligible_at,
        i.tenant, i.traceparent, true, i.crash_count, null::timestamptz, null::text[], i.awaits,
        (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
         from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null),
        case when i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end,
        i.parent_id, n.freed, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens'), null::int[],
        null::text, false;
end $$;

-- schema/functions/_raise_lane_floors.sql
-- Raises the floor of each lane that these instances have left to the position of the instance, so
-- that the next scan of the lane begins there and does not read dead index entries of earlier
-- instances.
--   called by: _promote_successors      index: instances_pkey, lanes_pkey
--   locks: the lanes, skipping locked rows: a later settled instance raises the floor of a skipped
--   lane
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._raise_lane_floors(p_ids bigint[]) returns void
language plpgsql
as $$
begin
    with held as materialized (
        select l.tenant, l.key, i.lane_position
        from gen_durable.instances i
        join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
        where i.id = any (p_ids) and not i.in_lane and i.lane_position > l.floor
        for no key update of l skip locked
    )
    update gen_durable.lanes l set floor = h.lane_position
    from held h
    where l.tenant = h.tenant and l.key = h.key;
end $$;

-- schema/functions/_late_successors.sql
-- Locks the lanes of settled instances for which no successor was found, and searches again:
-- `_place` may have assigned a position in the lane between the first search and the lock. Returns
-- the successors that it found, and the settled instance of each.
--   called by: _promote_successors      index: instances_pkey, lanes_pkey, instances_lane
--   locks: the lanes, in (tenant, key)
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._late_successors(p_emptied bigint[], out ids bigint[], out freed bigint[])
language plpgsql
as $$
#variable_conflict use_column
begin
    -- Locks the lanes first and scans them in another statement, so that the snapshot of the scan
    -- is newer than the locks.
    perform from gen_durable.instances i
    join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
    where i.id = any (p_emptied)
    order by l.tenant, l.key
    for update of l;
    select array_agg(n.id), array_agg(i.id) into ids, freed
    from gen_durable.instances i
    cross join lateral (
        select e.id, e.status from gen_durable.instances e
        where e.lane_hash = i.lane_hash and e.in_lane and e.lane_position > i.lane_position
          and e.tenant = i.tenant and e.lane_key = i.lane_key
        order by e.lane_hash, e.lane_position
        limit 1
    ) n
    where i.id = any (p_emptied) and n.status = 'queued';
end $$;

-- schema/functions/_release_successors.sql
-- Makes successors runnable, so that any picker can claim them. p_freed names the ended instance of
-- each successor. Skips locked successors, and returns the ended instance of each skipped one. No
-- other instance may run before a skipped successor, so the caller draws an arrival number for the
-- ended instance, and `_place` reads its lane or partition key again.
--   called by: _promote_successors      index: instances_pkey
--   locks: the successors by id, skipping locked rows
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._release_successors(p_ids bigint[], p_freed bigint[], p_worker uuid) returns bigint[]
language plpgsql
as $$
declare
    free_ids bigint[];
begin
    free_ids := array(
        select i.id from gen_durable.instances i
        where i.id = any (p_ids) and (i.partition_waiting or (i.status = 'queued' and i.in_lane))
        order by i.id
        for no key update skip locked);
    -- Makes the successors runnable. If the new head of a lane has a partition key too, it waits
    -- for its partition.
    update gen_durable.instances i
    set status = 'runnable',
        partition_waiting = i.status = 'queued' and i.partition_key is not null,
        arrival_no = case when i.status = 'queued' and i.partition_key is not null
                       then nextval('gen_durable.arrival_numbers') else i.arrival_no end,
        eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
    where i.id = any (free_ids);
    if cardinality(free_ids) < cardinality(p_ids) then
        return array(
            select n.freed from unnest(p_ids, p_freed) as n(id, freed)
            where n.id <> all (free_ids) and not exists (
                -- Leaves out successors that this commit has already claimed for its own worker.
                select from gen_durable.instances i where i.id = n.id and i.status = 'executing' and i.locked_by = p_worker));
    end if;
    return '{}';
end $$;

-- schema/functions/_promote_successors.sql
-- Promotes the successors of instances that this transaction has just settled in a lane, or that
-- have ended a step under a partition key. p_worker claims the successors of the instances in
-- p_run_successors_of, if it may run them at once. Any picker can claim the others.
--   called by: _write_keyed_step_results, _write_step_results_with_effects, warm.sql
--   index: instances_lane, instances_pkey, lanes_pkey; as its parts
--   locks: the successors; then lanes in (tenant, key), and after that only rows that it skips if
--   they are locked. If the worker claims a successor, it waits for the lock of the successor, as
--   for every row of a batch, up to the lock timeout. Otherwise it skips a locked successor, and
--   `_place` promotes that successor later.
create function gen_durable._promote_successors(
    p_ids bigint[], p_run_successors_of bigint[], p_worker uuid, p_lease_seconds float8, p_known text[]
) returns setof gen_durable.claimed
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    emptied bigint[];
    settled bigint[];
    settled_position bigint;
    has_partitions boolean;
    -- The successors, the ended instance of each, and the queue in which this worker may run it.
    ids bigint[];
    freed bigint[];
    queues text[];
    in_partitions record;
    late record;
    claimed bigint := 0;
    passed_over bigint[];
begin
    -- Finds the instances that have left a lane, and the next instance in each lane. Placements
    -- only append to a lane, so this read needs no lock of the lane. If a successor is cancelled at
    -- this moment, no statement below changes it.
    select array_agg(i.id) filter (where lane.is_free and n.id is null),
        array_agg(i.id) filter (where lane.is_free), max(i.lane_position) filter (where lane.is_free),
        array_agg(n.id) filter (where n.status = 'queued'), array_agg(i.id) filter (where n.status = 'queued'),
        array_agg(n.queue) filter (where n.status = 'queued'),
        bool_or(i.partition_key is not null and i.status <> 'executing')
    into emptied, settled, settled_position, ids, freed, queues, has_partitions
    from gen_durable.instances i
    cross join lateral (select i.lane_position is not null and not i.in_lane
                               and i.status in ('done', 'failed', 'cancelled') as is_free) lane
    left join lateral (
        select e.id, e.status,
            -- At most one successor per ended instance runs at once. If the instance frees a lane
            -- and a partition key together, the next pick claims both successors.
            case when i.partition_key is null and e.partition_key is null then i.queue end as queue
        from gen_durable.instances e
        where lane.is_free and e.lane_hash = i.lane_hash and e.in_lane and e.lane_position > i.lane_position
          and e.tenant = i.tenant and e.lane_key = i.lane_key
        order by e.lane_hash, e.lane_position
        limit 1
    ) n on true
    where i.id = any (p_ids);

    if has_partitions then
        select s.ids, s.freed, s.queues into in_partitions from gen_durable._partition_successors(p_ids) s;
        ids := ids || in_partitions.ids;
        freed := freed || in_partitions.freed;
        queues := queues || in_partitions.queues;
    end if;
    if ids is not null and cardinality(p_run_successors_of) > 0 then
        return query select * from gen_durable._claim_successors(
            ids, freed, queues, p_run_successors_of, p_worker, p_lease_seconds, p_known);
        get diagnostics claimed = row_count;
    end if;

    -- The following calls lock rows of `lanes`, so they run after all waits for locks of instances.
    if gen_durable._one_in(50, settled_position) then
        -- One commit in fifty raises the floors of its lanes.
        perform gen_durable._raise_lane_floors(settled);
    end if;
    if claimed = cardinality(ids) then
        ids := null;
        freed := null;
    end if;
    if emptied is not null then
        select s.ids, s.freed into late from gen_durable._late_successors(emptied) s;
        ids := ids || late.ids;
        freed := freed || late.freed;
    end if;
    if ids is not null then
        -- A successor that was cancelled or locked since this commit read the lane or partition is
        -- passed over. Its predecessor draws an arrival number, so that `_place` reads the lane or
        -- partition again.
        passed_over := gen_durable._release_successors(ids, freed, p_worker);
        if cardinality(passed_over) > 0 then
            update gen_durable.instances i set arrival_no = nextval('gen_durable.arrival_numbers') where i.id = any (passed_over);
        end if;
    end if;
end $$;

-- schema/functions/_write_keyed_step_results.sql
-- Writes step results of instances that are in a lane or have a partition key, and promotes their
-- successors.
--   called by: store::step_results      index: instances_pkey; as _promote_successors
--   locks: as _write_step_results, then as _promote_successors
-- The first row has in `marks` the ids of the instances with a written result. Further rows are one
-- for each instance that runs ahead and has signals in its inbox or children, and one for each
-- successor that the worker runs at once.
create function gen_durable._write_keyed_step_results(
    p_ids bigint[], p_epochs bigint[], p_seqs bigint[], p_statuses text[], p_versions int[],
    p_steps text[], p_data text[], p_states text[], p_results text[], p_errors text[],
    p_attempt_changes int[], p_delays float8[], p_lock_timeout text,
    p_run_successors_of bigint[], p_worker uuid, p_lease_seconds float8, p_known text[]
) returns setof gen_durable.claimed
language plpgsql
as $$
declare
    written bigint[];
    inboxes text[];
    child_lists text[];
    info gen_durable.claimed;
begin
    select array_agg(w.id), array_agg(w.inbox), array_agg(w.children) into written, inboxes, child_lists
    from gen_durable._write_step_results(p_ids, p_epochs, p_seqs, p_statuses, p_versions, p_steps, p_data, p_states, p_results, p_errors,
        p_attempt_changes, p_delays, p_lock_timeout) w;
    if written is null then
        return;
    end if;
    -- Returns the ids of all instances with a written result in one row: a row for each would
    -- double the size of the reply.
    info.marks := written;
    info.eligible_at := gen_durable.clock();
    info.keyed := true;
    return next info;
    if cardinality(array_remove(inboxes, null)) > 0 or cardinality(array_remove(child_lists, null)) > 0 then
        info.marks := null;
        for info.id, info.inbox, info.children in
            select w.id, w.inbox, w.children from unnest(written, inboxes, child_lists) as w(id, inbox, children)
            where w.inbox is not null or w.children is not null
        loop
            return next info;
        end loop;
    end if;
    return query select h.*
    from gen_durable._promote_successors(written, p_run_successors_of, p_worker, p_lease_seconds, p_known) h;
end $$;

-- schema/functions/_notify_parents.sql
-- Subtracts settled children from `children_pending` of their parents, and ends the joins that are
-- complete. Only children of the parent's last spawn count: a child of an older spawn changes
-- nothing.
--   called by: _write_step_results_with_effects, _cancel_live, store::lease::reap      index: instances_pkey
--   locks: the parents by id, after the children's own rows
create function gen_durable._notify_parents(p_children bigint[]) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    parents bigint[];
begin
    parents := array(select distinct c.parent_id from gen_durable.instances c
                     where c.id = any (p_children) and c.parent_generation is not null);
    perform p.id from gen_durable.instances p where p.id = any (parents) order by p.id for no key update;

    with settled as materialized (
        select c.parent_id, c.parent_generation, count(*)::int as count
        from gen_durable.instances c
        where c.id = any (p_children) and c.parent_generation is not null
        group by c.parent_id, c.parent_generation
    )
    update gen_durable.instances p
    set children_pending = p.children_pending - settled.count,
        status = case when p.status = 'awaiting_children' and (p.children_pending - settled.count = 0 or p.join_any)
                      then 'runnable' else p.status end,
        eligible_at = case when p.status = 'awaiting_children' and (p.children_pending - settled.count = 0 or p.join_any)
                           then gen_durable.clock() else p.eligible_at end,
        deadline_at = case when p.status = 'awaiting_children' and (p.children_pending - settled.count = 0 or p.join_any)
                           then null else p.deadline_at end,
        partition_waiting = p.partition_waiting or p.partition_key is not null and p.status = 'awaiting_children'
                                   and (p.children_pending - settled.count = 0 or p.join_any),
        arrival_no = case when p.partition_key is not null and p.status = 'awaiting_children'
                            and (p.children_pending - settled.count = 0 or p.join_any)
                       then nextval('gen_durable.arrival_numbers') else p.arrival_no end,
        updated_at = gen_durable.clock()
    from settled
    where p.id = settled.parent_id and p.join_generation = settled.parent_generation;
    perform gen_durable._record_wakes(parents, 'children');
end $$;

-- schema/functions/_consume_signals.sql
-- Deletes the signals that steps had received, once the steps have progressed or settled. A signal
-- with a dedup key stays without its payload.
--   called by: _write_step_results_with_effects      index: signals_pkey
--   locks: the signals of instances that the caller has locked
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._consume_signals(p_results jsonb, p_written bigint[]) returns void
language plpgsql
as $$
begin
    with used as (
        select x.value::bigint as id
        from jsonb_array_elements(p_results) e
        cross join lateral jsonb_array_elements_text(e->'consumed') x
        where e ? 'consumed' and (e->>'id')::bigint = any (p_written)
    ), gone as (
        delete from gen_durable.signals s using used where s.id = used.id and s.dedup_key is null
    )
    update gen_durable.signals s set consumed_at = gen_durable.clock(), payload = 'null'
    from used where s.id = used.id and s.dedup_key is not null;
end $$;

-- schema/functions/_apply_effects.sql
-- Applies the effects of step results in the order of the instance ids: limits of the next step,
-- waits, spawns, new instances, repeating timers, and sleeps until a date.
--   called by: _write_step_results_with_effects      index: instances_pkey, signals_inbox; as
--   enqueue_all, _insert_repeating_timers
--   locks: rows that the caller has locked; as enqueue_all
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._apply_effects(p_results jsonb, p_written bigint[]) returns void
language plpgsql
as $$
declare
    ending jsonb;
    spawned int;
    taken int;
begin
    for ending in
        select e from jsonb_array_elements(p_results) e
        where (e ? 'awaits' or e ? 'spawn' or e ? 'new_instances' or e ? 'signals' or e ? 'at' or e ? 'limits') and (e->>'id')::bigint = any (p_written)
        order by (e->>'id')::bigint
    loop
        if ending ? 'limits' then
            -- The limits of the step that the instance enters; null: none.
            update gen_durable.instances i
            set limit_group = ending->'limits'->>'limit_group', limit_weight = (ending->'limits'->>'limit_weight')::bigint
            where i.id = (ending->>'id')::bigint;
        end if;
        if ending ? 'awaits' or ending ? 'spawn' then
            update gen_durable.instances i
            set awaits = case when ending ? 'awaits' then array(select jsonb_array_elements_text(ending->'awaits')) end,
                deadline_at = case when ending->'deadline' ? 'at'
                    then greatest((ending->'deadline'->>'at')::timestamptz, gen_durable.clock())
                    else gen_durable.clock() + make_interval(secs => (ending->'deadline'->>'after')::float8) end,
                deadline_step = ending->'deadline'->>'step',
                deadline_data = ending->'deadline'->'data',
                join_generation = i.join_generation + (ending ? 'spawn')::int,
                join_any = coalesce((ending->'spawn'->>'any')::boolean, false)
            where i.id = (ending->>'id')::bigint;
        end if;
        if ending ? 'awaits' then
            -- Wakes the instance if its inbox has a signal that it waits for. The snapshot of this
            -- statement is newer than the lock on the instance's row: a signal that was sent while
            -- the instance began to wait is visible, or its sender waits for the lock. Signals that
            -- the step has already received do not wake the instance. The condition compares each
            -- id and not the largest one, since ids commit out of order.
            update gen_durable.instances i
            set status = 'runnable', deadline_at = null, eligible_at = gen_durable.clock(),
                partition_waiting = i.partition_key is not null
            where i.id = (ending->>'id')::bigint and exists (
                select from gen_durable.signals s
                where s.target_id = i.id and s.consumed_at is null and s.name = any (i.awaits)
                  and s.id <> all (array(select jsonb_array_elements_text(coalesce(ending->'seen', '[]'))::bigint)));
        end if;
        if ending ? 'spawn' then
            select count(*) filter (where c.is_new), count(*) filter (where not c.is_new) into spawned, taken
            from gen_durable.instances i
            cross join lateral gen_durable.enqueue_all(ending->'spawn'->'children', i.id, i.join_generation) c
            where i.id = (ending->>'id')::bigint;
            if taken > 0 and (ending->'spawn'->>'taken') = 'fail' then
                raise exception '% of the children have a key that is taken', taken using errcode = 'unique_violation';
            end if;
            update gen_durable.instances i
            set children_pending = spawned,
                status = case when spawned = 0 then 'runnable' else i.status end,
                partition_waiting = spawned = 0 and i.partition_key is not null,
                deadline_at = case when spawned = 0 then null else i.deadline_at end,
                eligible_at = gen_durable.clock()
            where i.id = (ending->>'id')::bigint;
        end if;
        if ending ? 'new_instances' then
            perform gen_durable.enqueue_all(ending->'new_instances');
        end if;
        if ending ? 'repeats' then
            perform gen_durable._insert_repeating_timers((ending->>'id')::bigint, ending->'repeats');
        end if;
        if ending ? 'at' then
            update gen_durable.instances i set eligible_at = greatest((ending->>'at')::timestamptz, gen_durable.clock())
            where i.id = (ending->>'id')::bigint and i.status = 'runnable';
        end if;
    end loop;
end $$;

-- schema/functions/_send_effects.sql
-- Sends the signals of step results in one batch, since `signal_all` locks all targets in one
-- order. Raises an error if a signal cannot be delivered, so that no result of this batch is
-- written.
--   called by: _write_step_results_with_effects      index: as signal_all      locks: as signal_all
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._send_effects(p_results jsonb, p_written bigint[]) returns void
language plpgsql
as $$
declare
    signals jsonb;
    refused text;
    reason text;
begin
    signals := (select jsonb_agg(l) from jsonb_array_elements(p_results) e
                cross join lateral jsonb_array_elements(e->'signals') l
                where e ? 'signals' and (e->>'id')::bigint = any (p_written));
    if signals is null then
        return;
    end if;
    select signals->(a.place - 1)->>'name', a.answer into refused, reason
    from gen_durable.signal_all(signals) a where a.answer in ('no_target', 'inbox_full') limit 1;
    if found then
        -- P0D01 means that the inbox of a target is full. A later retry of the step may succeed, so
        -- the policy of the step decides about retries (see store::fault).
        raise exception 'signal % was not delivered: %', refused, reason
            using errcode = case reason when 'inbox_full' then 'P0D01' else '23503' end;
    end if;
end $$;

-- schema/functions/_write_step_results_with_effects.sql
-- Writes step results that do more than end a step: results that wait, spawn children, consume
-- signals, have effects, or settle a child.
--   called by: store::step_results::write, store::step_results::write_within
--   index: instances_pkey, instances_children, signals_inbox; as its parts
--   locks: the instances of the results by id, then parents by id, then lanes, then the targets of
--   signals by id, then the heads of event logs
-- The first statement returns the ids that it has written, and everything after it uses these ids
-- only: a worker that lost its claim changes nothing.
create function gen_durable._write_step_results_with_effects(p_results jsonb, p_lock_timeout text)
returns table (id bigint, status text, inbox text, children text)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    written bigint[];
    settled bigint[];
    freeing bigint[];
    -- Whether this call is a part of a larger transaction, which another statement commits.
    larger boolean := p_lock_timeout is null or pg_current_xact_id_if_assigned() is not null;
    _is_read_committed boolean := gen_durable._is_read_committed();
begin
    select array_agg(w.id) into written
    from (
        select array_agg((e->>'id')::bigint order by o) ids, array_agg((e->>'epoch')::bigint order by o) epochs,
            array_agg((e->>'seq')::bigint order by o) seqs, array_agg(e->>'status' order by o) statuses,
            array_agg((e->>'version')::int order by o) versions, array_agg(e->>'step' order by o) steps,
            array_agg((e->'data')::text order by o) datas, array_agg((e->'state')::text order by o) states,
            array_agg((e->'result')::text order by o) results, array_agg(e->>'error' order by o) errors,
            array_agg((e->>'attempt_change')::int order by o) attempt_changes, array_agg((e->>'delay')::float8 order by o) delays
        from jsonb_array_elements(p_results) with ordinality x(e, o)
    ) a
    cross join lateral gen_durable._write_step_results(a.ids, a.epochs, a.seqs, a.statuses, a.versions, a.steps, a.datas, a.states,
        a.results, a.errors, a.attempt_changes, a.delays, p_lock_timeout) w;
    if written is null then
        return;
    end if;
    if not _is_read_committed and jsonb_path_exists(p_results, '$[*].awaits') then
        raise exception 'a step''s transaction at % cannot end by waiting for a signal: a signal that was sent meanwhile would not be visible. End it with next(..) and wait in that step, or use read committed',
            current_setting('transaction_isolation') using errcode = 'feature_not_supported';
    end if;
    if jsonb_path_exists(p_results, '$[*].consumed') then
        perform gen_durable._consume_signals(p_results, written);
    end if;
    perform gen_durable._apply_effects(p_results, written);
    perform gen_durable._record_result_history(p_results, written);

    -- Notifies the parents of all children that this batch has settled, in one call. The ids come
    -- from the results and not from a condition on the table, which would allow a scan of the index
    -- of all settled instances.
    settled := array(select (e->>'id')::bigint from jsonb_array_elements(p_results) e
                     where e ? 'child' and (e->>'id')::bigint = any (written));
    if cardinality(settled) > 0 then
        perform gen_durable._notify_parents(settled);
    end if;

    -- The instances with step results in this batch that may free a lane or a partition key.
    freeing := array(select (e->>'id')::bigint from jsonb_array_elements(p_results) e
                     where e ? 'keyed' and (e->>'id')::bigint = any (written));
    if cardinality(freeing) > 0 and _is_read_committed then
        perform gen_durable._promote_successors(freeing, '{}', null, 0, '{}');
    elsif cardinality(freeing) > 0 then
        -- Above the isolation level read committed, this transaction does not see instances that
        -- arrived after its snapshot. The instances that free a lane or a partition key draw
        -- arrival numbers, so that the next placement promotes their successors.
        update gen_durable.instances i set arrival_no = nextval('gen_durable.arrival_numbers')
        where i.id = any (freeing) and (i.settled_at is not null or i.partition_key is not null and i.status <> 'executing');
    end if;

    -- Locks rows of other instances last: the targets of signals, and then the heads of event logs,
    -- which stay locked until the commit.
    if jsonb_path_exists(p_results, '$[*].signals') then
        perform gen_durable._send_effects(p_results, written);
    end if;
    if jsonb_path_exists(p_results, '$[*].events') then
        perform gen_durable._record_result_events(p_results, written, larger);
    end if;

    return query
    select i.id, i.status::text,
        case when i.status = 'executing' then gen_durable._inbox_of(i.id) end,
        case when i.status = 'executing' and i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end
    from gen_durable.instances i
    where i.id = any (written);
end $$;

-- schema/functions/signal.sql
-- Delivers a signal to an instance, by id or by key. Returns 'delivered', 'duplicate', 'no_target'
-- or 'inbox_full'.
--   called by: store::signal, signal_all, signal_or_start, SQL
--   index: instances_pkey or instances_key; signals_dedup, signals_inbox
--   locks: the target's row, always and first, so that a delivery and a commit that begins a wait
--   happen one after the other
create function gen_durable.signal(
    p_id bigint, p_tenant text, p_key text, p_machines text[], p_name text, p_payload jsonb, p_dedup text default null,
    p_inbox_max int default 1000
) returns text
language plpgsql
as $$
-- planner: pinned
declare
    target record;
    inbox record;
begin
    -- Locks the target of the signal without a condition on the status: with a condition, the
    -- statement would not wait for the lock of an instance that another transaction is about to set
    -- to waiting.
    if p_id is not null then
        select i.id, i.status, i.awaits, i.machine into target
        from gen_durable.instances i where i.id = p_id
        for no key update;
    else
        select i.id, i.status, i.awaits, i.machine into target
        from gen_durable.instances i where i.tenant = coalesce(p_tenant, '') and i.held_key = p_key
        for no key update;
    end if;
    if target.id is null or (p_machines is not null and target.machine <> all (p_machines)) then
        return 'no_target';
    end if;
    if target.status in ('done', 'failed', 'cancelled') then
        -- Returns 'duplicate' to a sender that repeats an accepted signal, even after the target
        -- has settled.
        return case when exists (select from gen_durable.signals s where s.target_id = target.id and s.dedup_key = p_dedup)
                    then 'duplicate' else 'no_target' end;
    end if;
    -- Limits the inbox of the target by number and by bytes, since every claim and every run-ahead
    -- commit of the target reads the whole inbox. An empty inbox accepts a signal of any size.
    select count(*) as signals, coalesce(sum(held.bytes), 0) as bytes into inbox
    from (select s.bytes from gen_durable.signals s where s.target_id = target.id and s.consumed_at is null limit p_inbox_max) held;
    if inbox.signals >= p_inbox_max
       or (inbox.signals > 0 and inbox.bytes + octet_length(p_payload::text) > gen_durable._inbox_bytes_max()) then
        -- Returns 'duplicate' to a sender that repeats an accepted signal, even if the inbox is
        -- full, so that the sender does not retry.
        return case when exists (select from gen_durable.signals s where s.target_id = target.id and s.dedup_key = p_dedup)
                    then 'duplicate' else 'inbox_full' end;
    end if;
    insert into gen_durable.signals (target_id, name, payload, dedup_key)
    values (target.id, p_name, p_payload, p_dedup)
    on conflict (target_id, dedup_key) where dedup_key is not null do nothing;
    if not found then
        return 'duplicate';
    end if;
    -- Decides whether the signal wakes the target by the row that the locking statement returned,
    -- and does not read `instances` again: the snapshot may be older than the lock.
    if target.status = 'awaiting_signal' and p_name = any (target.awaits) then
        update gen_durable.instances i
        set status = 'runnable', eligible_at = gen_durable.clock(), deadline_at = null, updated_at = gen_durable.clock(),
            partition_waiting = i.partition_key is not null,
            arrival_no = case when i.partition_key is not null then nextval('gen_durable.arrival_numbers') else i.arrival_no end
        where i.id = target.id;
        perform gen_durable._record_wakes(array[target.id], 'signal ' || p_name);
    end if;
    return 'delivered';
end $$;

-- schema/functions/signal_all.sql
-- Delivers signals: [{"id" or "tenant" and "key", "machines", "name", "payload", "dedup"}, ...].
-- Returns one row per signal: its place in p_signals, and 'delivered', 'duplicate', 'no_target' or
-- 'inbox_full'.
--   called by: store::signal::deliver_all, _send_effects, SQL
--   index: instances_pkey, instances_key; signals_dedup
--   locks: the targets by id, all of them before the first delivery: two batches in opposite order
--   do not deadlock
create function gen_durable.signal_all(p_signals jsonb, p_inbox_max int default 1000)
returns table (place int, answer text)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    signal record;
    meant bigint[];
begin
    -- Finds the targets of all signals in one statement.
    meant := array(
        select coalesce((l.value->>'id')::bigint, (
            select k.id from gen_durable.instances k
            where k.tenant = coalesce(l.value->>'tenant', '') and k.held_key = l.value->>'key'))
        from jsonb_array_elements(p_signals) with ordinality l(value, place)
        order by l.place);
    perform i.id from gen_durable.instances i where i.id = any (meant) order by i.id for no key update;
    for signal in
        select l.value, l.place::int as place from jsonb_array_elements(p_signals) with ordinality l(value, place) order by l.place
    loop
        place := signal.place;
        -- Delivers each signal by the id of the locked target, even if the signal names a key. If
        -- the holder of the key has settled since, the signal has no target: to lock a new holder
        -- of the key now would break the order of the locks.
        answer := gen_durable.signal(meant[signal.place], null, null,
            case when signal.value ? 'machines' then array(select jsonb_array_elements_text(signal.value->'machines')) end,
            signal.value->>'name', coalesce(signal.value->'payload', 'null'), signal.value->>'dedup', p_inbox_max);
        return next;
    end loop;
end $$;

-- schema/functions/signal_or_start.sql
-- Delivers a signal to the instance that holds the key of p_start. If no instance holds the key,
-- inserts the instance p_start with the signal in its inbox. p_start has the form of an entry of
-- enqueue_all.
--   called by: store::signal::signal_or_start, SQL      index: instances_key; signals_dedup
--   locks: the holder's row; or no existing row, and waits for an open transaction that has
--   inserted the same key
-- Returns the outcome of the delivery ('delivered', 'duplicate', 'inbox_full', or 'no_target': the
-- holder is of another machine, or has settled and keeps its key), the id of the holder, and
-- whether this call has inserted the holder.
create function gen_durable.signal_or_start(
    p_start jsonb, p_name text, p_payload jsonb, p_dedup text default null, p_machines text[] default null,
    p_inbox_max int default 1000
) returns table (answer text, id bigint, is_new boolean, eligible_at timestamptz)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    v_tenant text := coalesce(p_start->>'tenant', '');
    v_key text := p_start->>'key';
    holder record;
begin
    if v_key is null or p_start->>'scope' = 'none' then
        raise exception 'signal_or_start needs an entry with a key that its instance holds' using errcode = 'null_value_not_allowed';
    end if;
    for tries in 1..100 loop
        answer := gen_durable.signal(null, v_tenant, v_key, p_machines, p_name, p_payload, p_dedup, p_inbox_max);
        if answer <> 'no_target' then
            -- `signal` has locked the target's row until the end of the transaction, so the target
            -- still holds its key.
            return query select answer, i.id, false, i.eligible_at from gen_durable.instances i
                where i.tenant = v_tenant and i.held_key = v_key;
            return;
        end if;
        select e.id, e.is_new, e.eligible_at into holder from gen_durable.enqueue_all(jsonb_build_array(p_start)) e;
        if holder.is_new then
            answer := gen_durable.signal(holder.id, null, null, null, p_name, p_payload, p_dedup, p_inbox_max);
            return query select answer, holder.id, true, holder.eligible_at;
            return;
        end if;
        -- Another transaction has inserted an instance with the key after `signal` found no target.
        -- The next pass of this loop delivers the signal to that instance, unless it cannot receive
        -- the signal.
        if exists (select from gen_durable.instances i
                   where i.id = holder.id and i.held_key = v_key
                     and (i.settled_at is not null or i.machine <> all (p_machines))) then
            return query select 'no_target', holder.id, false, holder.eligible_at;
            return;
        end if;
    end loop;
    raise exception 'the key % was taken and freed again 100 times during this call', v_key using errcode = 'serialization_failure';
end $$;

-- schema/functions/_cancel_live.sql
-- Settles live instances as cancelled. The caller has locked their rows. Returns the ids of the
-- instances that this call settled, or null.
--   called by: cancel, _cancel_below      index: instances_pkey      locks: parents by id
-- If a worker runs a step of the instance, the worker loses its claim, and the fence rejects the
-- result of the step. The step still runs, so the instance keeps its lane, its partition key and
-- its limits: the row keeps its lane position, and `locked_by` names the worker, until that worker
-- reports that the step has ended or the worker's lease expires (`_release`).
create function gen_durable._cancel_live(p_ids bigint[], p_reason text) returns bigint[]
language plpgsql
as $$
-- planner: pinned
declare
    ids bigint[];
    running bigint[];
    workers uuid[];
    heads bigint[];
begin
    -- Finds the instances with a running step and a lane, a partition key or limits, with the
    -- worker of each, and the heads of lanes without a running step. The condition of this
    -- statement is on ids because of the planner; see `_claim_successors`.
    select array_agg(h.id) filter (where h.worker is not null), array_agg(h.worker) filter (where h.worker is not null),
        array_agg(h.id) filter (where h.worker is null and h.in_lane and h.status <> 'queued')
    into running, workers, heads
    from (select i.id, i.status, i.in_lane,
              case when i.status = 'executing' and (i.in_lane or i.partition_key is not null or i.limit_group is not null) then i.locked_by end as worker
          from gen_durable.instances i where i.id = any (p_ids) and i.settled_at is null) h;
    with ended as (
        update gen_durable.instances i
        set status = 'cancelled', claim_epoch = i.claim_epoch + 1,
            locked_by = workers[array_position(running, i.id)], lease_expires_at = null,
            awaits = null, deadline_at = null, deadline_step = null, deadline_data = null,
            last_error = coalesce(p_reason, 'cancelled'), settled_at = gen_durable.clock(), updated_at = gen_durable.clock(),
            -- An instance without a running step leaves its lane and frees its partition key, and
            -- draws an arrival number, so that `_place` promotes its successor. Any other instance
            -- keeps an arrival number that it has: `_place` may need that number to read the lane
            -- or partition key for other instances.
            partition_waiting = false, in_lane = i.in_lane and array_position(running, i.id) is not null,
            arrival_no = case when i.id = any (heads)
                                or i.partition_key is not null and not i.partition_waiting and i.status in ('runnable', 'awaiting_limit')
                           then nextval('gen_durable.arrival_numbers') else i.arrival_no end
        where i.id = any (p_ids) and i.settled_at is null
        returning i.id
    )
    select array_agg(ended.id) into ids from ended;
    if ids is null then
        return null;
    end if;
    perform gen_durable._record_history(ids, 'cancel');
    perform gen_durable._notify_parents(ids);
    return ids;
end $$;

-- schema/functions/cancel.sql
-- Cancels an instance at once, whatever its status; with p_subtree also all its live descendants.
--   called by: store::signal::cancel, SQL
--   index: instances_pkey or instances_key; instances_children
--   locks: the live instances by id, the youngest first; then as _cancel_live
-- This function cancels the whole tree in one transaction; `_cancel_below` cancels a tree in pages.
-- Returns 'cancelled', 'too_late' (the instance is settled) or 'no_target'.
create function gen_durable.cancel(
    p_id bigint, p_tenant text, p_key text, p_machines text[], p_reason text, p_subtree boolean default false
) returns text
language plpgsql
as $$
-- planner: pinned
declare
    target record;
    ids bigint[] := '{}';
    wanted bigint[];
begin
    select i.id, i.machine into target from gen_durable.instances i
    where i.id = coalesce(p_id, (select k.id from gen_durable.instances k
                                 where k.tenant = coalesce(p_tenant, '') and k.held_key = p_key));
    if target.id is null or (p_machines is not null and target.machine <> all (p_machines)) then
        return 'no_target';
    end if;
    -- Locks children before their parents, as a settling child locks its own row and then its
    -- parent's. Reads the tree under the locks until it finds no new instance: a parent may have
    -- committed a spawn while this transaction waited for the lock of its row.
    loop
        wanted := array(
            with recursive below(id, live) as (
                select i.id, i.settled_at is null from gen_durable.instances i where i.id = target.id
                union all
                select c.id, c.settled_at is null
                from below join gen_durable.instances c on c.parent_id = below.id where p_subtree
            )
            select id from below where live);
        exit when not exists (select unnest(wanted) except select unnest(ids));
        ids := wanted;
        perform i.id from gen_durable.instances i where i.id = any (ids) order by i.id desc for no key update;
    end loop;
    ids := gen_durable._cancel_live(ids, p_reason);
    return case when target.id = any (ids) then 'cancelled' else 'too_late' end;
end $$;

-- schema/functions/_cancel_below.sql
-- Cancels a page of the live children of settled instances. Reads at most p_limit children.
--   called by: store::signal::cancel_below
--   index: instances_children, instances_pkey; as _cancel_live
--   locks: the live children by id, the youngest first, each for at most p_lock_timeout; then as
--   _cancel_live
-- Callers cancel a tree from its root down: a settled parent spawns no more children, so this call
-- finds all of its children. The scan of the first parent begins after (p_generation, p_after). A
-- child that an operator retried has no generation and is read last. Returns the ids of the
-- children that were read, how many parents were read completely, where the next call continues in
-- the next parent, and how many children were cancelled.
create function gen_durable._cancel_below(
    p_parents bigint[], p_generation int, p_after bigint, p_limit int, p_reason text, p_lock_timeout text
) returns table (children bigint[], parents_read int, next_generation int, next_after bigint, cancelled int)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    parent bigint;
    room int := p_limit;
    page bigint[];
    generations int[];
    live bigint[];
    found_live bigint[] := '{}';
begin
    perform set_config('lock_timeout', p_lock_timeout, true);
    children := '{}';
    parents_read := 0;
    next_generation := p_generation;
    next_after := p_after;
    foreach parent in array p_parents loop
        exit when room = 0;
        select array_agg(c.id), array_agg(c.parent_generation), array_agg(c.id) filter (where c.live) into page, generations, live
        from (select * from (
                  (select c.id, c.parent_generation, c.settled_at is null as live from gen_durable.instances c
                   where c.parent_id = parent and (c.parent_generation, c.id) > (next_generation, next_after)
                   order by c.parent_generation, c.id limit room)
                  union all
                  (select c.id, c.parent_generation, c.settled_at is null from gen_durable.instances c
                   where c.parent_id = parent and c.parent_generation is null
                     and c.id > case when next_generation is null then next_after else 0 end
                   order by c.id limit room)) both_kinds
              order by parent_generation nulls last, id
              limit room) c;
        children := children || page;
        found_live := found_live || live;
        if cardinality(page) = room then
            next_generation := generations[room];
            next_after := page[room];
            room := 0;
        else
            room := room - coalesce(cardinality(page), 0);
            parents_read := parents_read + 1;
            next_generation := 0;
            next_after := 0;
        end if;
    end loop;
    cancelled := 0;
    if found_live <> '{}' then
        perform i.id from gen_durable.instances i where i.id = any (found_live) order by i.id desc for no key update;
        cancelled := coalesce(cardinality(gen_durable._cancel_live(found_live, p_reason)), 0);
    end if;
    return next;
end $$;

-- schema/functions/_release.sql
-- Frees the lanes and partition keys that cancelled instances kept while their step ran. The caller
-- has locked the rows of the instances. Returns their ids.
--   called by: release.sql, release_expired.sql      index: instances_pkey      locks: nothing further
-- Each instance draws an arrival number, so that the next placement promotes its successor.
create function gen_durable._release(p_ids bigint[]) returns bigint[]
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.instances i
    set locked_by = null, in_lane = false, arrival_no = nextval('gen_durable.arrival_numbers'), updated_at = gen_durable.clock()
    where i.id = any (p_ids);
    return p_ids;
end $$;

-- schema/functions/_delete_dependents.sql
-- Deletes the history and the signals of deleted instances, whether the collector or a person
-- deleted the instances.
--   called by: triggers      index: history_pkey, signals_inbox, signals_dedup
--   locks: the history rows and signals that it deletes
create function gen_durable._delete_dependents() returns trigger
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    if tg_op = 'TRUNCATE' then
        truncate gen_durable.history, gen_durable.signals;
    else
        delete from gen_durable.history t using gone where t.instance_id = gone.id;
        delete from gen_durable.signals s using gone where s.target_id = gone.id and s.consumed_at is null;
        delete from gen_durable.signals s using gone where s.target_id = gone.id and s.dedup_key is not null;
    end if;
    return null;
end $$;

create trigger instances_delete_dependents after delete on gen_durable.instances
    referencing old table as gone for each statement execute function gen_durable._delete_dependents();
create trigger instances_truncate_dependents after truncate on gen_durable.instances
    for each statement execute function gen_durable._delete_dependents();

-- schema/functions/_collect.sql
-- Deletes settled instances after their retention: at most about p_limit, a page of each range
-- (queue, status) that has any. The retention is in seconds; with null or infinity, instances are
-- never deleted. The scan of a range begins at its cursor. When a scan has reached the end of the
-- range, and p_pause seconds plus one second per 10,000 rows examined (at most an hour) have passed
-- since the pass began, the next pass begins at the start of the range, and finds the instances
-- that were locked or still needed before.
--   called by: store::collect::collect
--   index: instances_settled, instances_pkey, collect_cursors_pkey
--   locks: the cursors, one range after the other, and instances, skipping locked rows
-- Returns how many instances were deleted, and whether a page was full.
create function gen_durable._collect(
    p_retention float8, p_failed_retention float8, p_pause float8, p_limit int
) returns table (deleted bigint, more boolean)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
declare
    range record;
    cur record;
    page_size int;
    cutoff timestamptz;
    times timestamptz[];
    ids bigint[];
    read_to timestamptz;
    gone bigint;
    gone_at bigint;
    total bigint := 0;
    is_full boolean := false;
begin
    for range in
        -- Finds the ranges (queue, status) by reading the index backwards, because the front of a
        -- range is full of index entries of deleted instances.
        with recursive ranges(queue, status) as (
            (select i.queue, i.status from gen_durable.instances i
             where i.settled_at is not null order by i.queue desc, i.status desc limit 1)
            union all
            select earlier.queue, earlier.status from ranges r
            cross join lateral (
                select i.queue, i.status from gen_durable.instances i
                where i.settled_at is not null and (i.queue, i.status) < (r.queue, r.status)
                order by i.queue desc, i.status desc limit 1
            ) earlier
        )
        select r.queue, r.status, count(*) over ()::int as ranges,
            case when r.status = 'done' then coalesce(q.retention, p_retention)
                 else coalesce(q.failed_retention, p_failed_retention) end as seconds
        from ranges r
        left join gen_durable.queues q on q.name = r.queue
    loop
        continue when range.seconds is null or range.seconds = 'infinity';
        insert into gen_durable.collect_cursors (queue, status) values (range.queue, range.status) on conflict do nothing;
        select * into cur from gen_durable.collect_cursors c
        where c.queue = range.queue and c.status = range.status
        for update skip locked;
        continue when not found;
        page_size := greatest(p_limit / range.ranges, 50);
        cutoff := gen_durable.clock() - make_interval(secs => range.seconds);
        select array_agg(p.settled_at),
            -- Keeps an instance that is still in its lane (it blocks the lane, or it is cancelled
            -- and its step still runs), and an instance with an arrival number, by which `_place`
            -- reads its lane or partition key.
            array_agg(p.id) filter (where not p.in_lane and p.arrival_no is null and p.locked_by is null and parent.reads is null)
        into times, ids
        from (
            select i.id, i.settled_at, i.in_lane, i.arrival_no, i.locked_by, i.parent_id, i.parent_generation
            from gen_durable.instances i
            where i.queue = range.queue and i.status = range.status and i.settled_at >= cur.at and i.settled_at < cutoff
            order by i.settled_at
            offset cur.kept_at limit page_size
        ) p
        left join lateral (
            -- Keeps children of the last spawn of a live parent, since the parent may still read
            -- their results.
            select true as reads from gen_durable.instances r
            where r.id = p.parent_id and r.settled_at is null and r.join_generation = p.parent_generation
            offset 0
        ) parent on true;
        -- Checks the conditions a second time under the lock of the instance, since an operator may
        -- have retried the instance. The `coalesce` prevents a scan of the index of settled
        -- instances, which a plain condition on `settled_at` would allow.
        ids := array(
            select i.id from gen_durable.instances i
            where i.id = any (ids) and coalesce(i.settled_at < cutoff, false) and not i.in_lane and i.arrival_no is null
              and i.locked_by is null
            for update skip locked);
        read_to := (select max(t) from unnest(times) t);
        with deleted as (
            delete from gen_durable.instances i where i.id = any (ids) returning i.settled_at
        )
        select count(*), count(*) filter (where d.settled_at = read_to) into gone, gone_at from deleted d;
        total := total + gone;
        if times is not null then
            update gen_durable.collect_cursors c
            set at = read_to, examined = c.examined + cardinality(times),
                kept_at = case when c.at = read_to then c.kept_at else 0 end
                          + (select count(*) from unnest(times) t where t = read_to) - gone_at
            where c.queue = range.queue and c.status = range.status;
        end if;
        if cardinality(times) = page_size then
            is_full := true;
        elsif gen_durable.clock() >= cur.pass_began_at
                + make_interval(secs => p_pause + least(3600, (cur.examined + coalesce(cardinality(times), 0)) / 10000)) then
            update gen_durable.collect_cursors c
            set at = '-infinity', kept_at = 0, examined = 0, pass_began_at = gen_durable.clock()
            where c.queue = range.queue and c.status = range.status;
        end if;
    end loop;
    return query select total, is_full;
end $$;

-- schema/functions/_retry.sql
-- Makes failed, cancelled and stuck instances runnable again, from the current step, or from p_step
-- with p_data.
--   called by: store::operate::retry, _apply_bulk_page
--   index: instances_pkey, instances_key
--   locks: the instances by id; waits for a transaction that has inserted the key of an instance
--   and not committed yet
-- A retry of the current step keeps step_entry_seq, so the idempotency key stays; with p_step the
-- instance enters another step. A settled child was already counted at its parent's join and does
-- not count again; a stuck child was not counted, and still counts. An instance that has left its
-- lane is appended to the lane; an instance that blocks its lane runs at its position. The
-- statement locks the rows before it draws arrival numbers, so that the transaction has an id: see
-- `_place_new`. It draws them in the order of the ids: older instances come first in a lane.
create function gen_durable._retry(p_ids bigint[], p_step text, p_data text)
returns table (id bigint, queue text, priority smallint, eligible_at timestamptz)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
begin
    return query
    with held as materialized (
        select i.id, i.step, i.partition_key is not null or (i.lane_key is not null and not i.in_lane) as arrives
        from gen_durable.instances i
        where i.id = any (p_ids) and i.status in ('failed', 'cancelled', 'stuck')
          -- Leaves out a cancelled instance while its step still runs: after a retry, two steps of
          -- the instance would run at the same time.
          and i.locked_by is null
        order by i.id
        for no key update
    ),
    numbered as materialized (
        select held.id, held.step, case when held.arrives then nextval('gen_durable.arrival_numbers') end as arrival_no from held
    ),
    again as (
        update gen_durable.instances i
        set status = case when i.lane_key is null or i.in_lane then 'runnable' else 'queued' end::gen_durable.durable_status,
            partition_waiting = i.partition_key is not null and (i.lane_key is null or i.in_lane),
            arrival_no = coalesce(numbered.arrival_no, i.arrival_no),
            step = coalesce(p_step, i.step),
            data = case when p_step is null then i.data else p_data::jsonb end,
            awaits = case when p_step is null then i.awaits end,
            -- The worker that claims the instance computes the limits of another step.
            limit_group = case when p_step is null then i.limit_group end,
            limit_weight = case when p_step is null then i.limit_weight end,
            step_entry_seq = case when p_step is null then i.step_entry_seq else i.step_seq + 1 end,
            step_seq = i.step_seq + 1,
            claim_epoch = i.claim_epoch + 1,
            attempt = 0, failures = 0,
            crash_count = 0,
            eligible_at = gen_durable.clock(),
            result = null, last_error = null, settled_at = null,
            deadline_at = null, deadline_step = null, deadline_data = null,
            parent_generation = case when i.settled_at is null then i.parent_generation end,
            updated_at = gen_durable.clock()
        from numbered
        where i.id = numbered.id
        returning i.id, i.step_seq, i.claim_epoch, i.status, i.step, i.queue, i.priority, i.eligible_at
    ),
    recorded as (
        insert into gen_durable.history
            (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
        select again.id, again.step_seq, again.claim_epoch, gen_durable.clock(), 0, again.status, 'operator_retry', numbered.step, again.step
        from again join numbered on numbered.id = again.id
    )
    select again.id, again.queue, again.priority, again.eligible_at from again;
end $$;

-- schema/functions/_discard.sql
-- Gives up failed and stuck instances: they become cancelled. The caller has locked their rows.
-- Returns the ids of the instances that this call changed.
--   called by: _apply_bulk_page      index: instances_pkey      locks: as _cancel_live
-- The commit that failed an instance has already notified its parent. A failed instance that blocks
-- its lane leaves the lane and draws an arrival number, so that the next placement promotes its
-- successor, as lane_discard.sql does.
create function gen_durable._discard(p_ids bigint[], p_reason text) returns bigint[]
language plpgsql
as $$
-- planner: pinned
declare
    failed bigint[];
begin
    with ended as (
        update gen_durable.instances i
        set status = 'cancelled', in_lane = false,
            arrival_no = case when i.in_lane then nextval('gen_durable.arrival_numbers') else i.arrival_no end,
            claim_epoch = i.claim_epoch + 1,
            last_error = p_reason || coalesce('; it had failed: ' || i.last_error, ''),
            settled_at = gen_durable.clock(), updated_at = gen_durable.clock()
        where i.id = any (p_ids) and i.status = 'failed'
        returning i.id
    )
    select array_agg(ended.id) into failed from ended;
    if failed is not null then
        perform gen_durable._record_history(failed, 'cancel');
    end if;
    return coalesce(failed, '{}') || coalesce(gen_durable._cancel_live(
        array(select i.id from gen_durable.instances i where i.id = any (p_ids) and i.status = 'stuck'), p_reason), '{}');
end $$;

-- schema/functions/_bulk_matches.sql
-- Returns whether an instance meets the conditions of a bulk action.
--   called by: _bulk_page, _apply_bulk_page      index: none      locks: nothing
-- Postgres inlines this function into the statements that call it.
create function gen_durable._bulk_matches(p_bulk gen_durable.bulk_actions, p_instance gen_durable.instances) returns boolean
language sql stable
as $$
    select p_instance.status = p_bulk.status
       and (p_bulk.machine is null or p_instance.machine = p_bulk.machine)
       and (p_bulk.machine_version is null or p_instance.machine_version = p_bulk.machine_version)
       and (p_bulk.step is null or p_instance.step = p_bulk.step)
       and (p_bulk.queue is null or p_instance.queue = p_bulk.queue)
       and (p_bulk.tenant is null or p_instance.tenant = p_bulk.tenant)
       and (p_bulk.key is null or p_instance.key = p_bulk.key)
       and (p_bulk.key_prefix is null or starts_with(p_instance.key, p_bulk.key_prefix))
       and (p_bulk.lane is null or p_instance.lane_key = p_bulk.lane)
       and (p_bulk.partition is null or p_instance.partition_key = p_bulk.partition)
       and (p_bulk.error_group is null or p_instance.error_group = p_bulk.error_group_id)
       and (p_bulk.error_contains is null or position(lower(p_bulk.error_contains) in lower(p_instance.last_error)) > 0)
       and (p_bulk.since is null or p_instance.inserted_at >= p_bulk.since)
       and (p_bulk.until is null or p_instance.inserted_at < p_bulk.until)
$$;

-- schema/functions/_bulk_page.sql
-- Reads the next page of a bulk action after its cursor: at most p_rows_max instances, of which at
-- most p_matches_max match. Returns the cursor, the matching instances, the id up to which the page
-- has read, the number of instances read, and whether the page is the last one.
--   called by: store::bulk::page
--   index: instances_by_key, instances_by_error_group, instances_by_failed_step, instances_aside or
--   instances_by_tenant, by the conditions; instances_pkey without such a condition
--   locks: nothing
-- A key prefix is read by its index only if fewer than p_rows_max keys have the prefix, since the
-- index is in the order of the keys.
create function gen_durable._bulk_page(p_id bigint, p_rows_max int, p_matches_max int)
returns table (cursor bigint, ids bigint[], read_to bigint, examined int, is_last boolean)
language plpgsql
set enable_sort = off
as $$
-- planner: pinned
#variable_conflict use_column
declare
    bulk gen_durable.bulk_actions;
    read_by text;
    rows_read bigint[];
begin
    select b.* into bulk from gen_durable.bulk_actions b where b.id = p_id;
    cursor := bulk.cursor;
    read_by := case
        when bulk.key is not null then 'key'
        when bulk.error_group is not null then 'error_group'
        when bulk.status in ('failed', 'stuck') and bulk.machine is not null and bulk.step is not null then 'failed_step'
        when bulk.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled') then 'status'
        when bulk.tenant <> '' then 'tenant'
        else 'id' end;
    if bulk.key is null and bulk.key_prefix is not null then
        execute format('select array_agg(k.id order by k.id) from (select i.id from gen_durable.instances i where %s limit $3) k',
            (gen_durable._search_range('prefix'))[1])
        into rows_read
        using bulk.id_max + 1, bulk.cursor + 1, p_rows_max, null, null, null, null, null, null, null, bulk.key_prefix,
            null, null, null, null, null, bulk.key_prefix_end;
    end if;
    if bulk.key is not null or bulk.key_prefix is null or cardinality(rows_read) = p_rows_max then
        execute format(
            'select array_agg(k.id) from (select i.id from gen_durable.instances i where %s order by %s limit $3) k',
            (gen_durable._search_range(read_by))[1], replace((gen_durable._search_range(read_by))[2], ' desc', ''))
        into rows_read
        using bulk.id_max + 1, bulk.cursor + 1, p_rows_max, bulk.machine, null, bulk.status, bulk.step, null, bulk.tenant,
            bulk.key, null, null, null, null, null, null, null, bulk.error_group_id;
    end if;
    rows_read := coalesce(rows_read, '{}');
    select array_agg(m.id order by m.id) into ids
    from (select i.id from gen_durable.instances i
          where i.id = any (rows_read) and gen_durable._bulk_matches(bulk, i)
          order by i.id limit p_matches_max) m;
    is_last := cardinality(rows_read) < p_rows_max and coalesce(cardinality(ids), 0) < p_matches_max;
    read_to := case when is_last then bulk.id_max
                    when cardinality(ids) = p_matches_max then ids[p_matches_max]
                    else rows_read[p_rows_max] end;
    examined := (select count(*)::int from unnest(rows_read) as r(id) where r.id <= read_to);
    return next;
end $$;

-- schema/functions/_apply_bulk_page.sql
-- Applies a page of a bulk action: changes the instances that still match, and records the
-- progress, in one transaction. Returns no row if the bulk action has ended, has another runner, or
-- is not at p_cursor any more; then nothing was changed.
--   called by: store::bulk::apply
--   index: bulk_actions_pkey, instances_pkey; as _retry, _cancel_live
--   locks: the bulk action; then the instances by id; then as _retry, _cancel_live
-- A page of more than one instance waits for no instance, since it would wait with the locks of the
-- others: it fails, and the runner sends a smaller page. A single instance is waited for. If a
-- single instance cannot be changed, the runner passes the reason as p_refusal, and no p_ids.
create function gen_durable._apply_bulk_page(
    p_id bigint, p_runner uuid, p_lease_seconds float8, p_cursor bigint, p_read_to bigint, p_examined int, p_is_last boolean,
    p_ids bigint[], p_refusal text
) returns table (changed int, refused int)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    bulk gen_durable.bulk_actions;
    matching bigint[];
    kept_out bigint[];
    reasons text[] := array_remove(array[p_refusal], null);
begin
    perform gen_durable._require_read_committed();
    select b.* into bulk from gen_durable.bulk_actions b where b.id = p_id for no key update;
    if bulk.state is distinct from 'running' or bulk.runner is distinct from p_runner or bulk.cursor <> p_cursor then
        return;
    end if;
    if cardinality(p_ids) > 1 then
        perform i.id from gen_durable.instances i where i.id = any (p_ids) order by i.id for no key update nowait;
    else
        perform i.id from gen_durable.instances i where i.id = any (p_ids) for no key update;
    end if;
    matching := array(
        select i.id from gen_durable.instances i where i.id = any (p_ids) and gen_durable._bulk_matches(bulk, i));
    if bulk.action = 'retry' then
        kept_out := array(
            select i.id from gen_durable.instances i
            where i.id = any (matching)
              and (i.locked_by is not null
                   or i.held_key is null and 'runnable' = any (i.key_scope)
                      and exists (select from gen_durable.instances k where k.tenant = i.tenant and k.held_key = i.key))
            order by i.id);
        reasons := reasons || array(
            select format('instance %s: another instance holds its key, or its step still runs after a cancel', k.id)
            from unnest(kept_out) as k(id));
        changed := (select count(*)::int from gen_durable._retry(
            array(select m.id from unnest(matching) as m(id) where m.id <> all (kept_out)), bulk.retry_step, null));
    elsif bulk.action = 'cancel' then
        changed := coalesce(cardinality(gen_durable._cancel_live(matching, bulk.reason)), 0);
    else
        changed := cardinality(gen_durable._discard(matching, bulk.reason));
    end if;
    refused := cardinality(reasons);
    update gen_durable.bulk_actions b
    set cursor = p_read_to, examined = b.examined + p_examined,
        changed = b.changed + _apply_bulk_page.changed, refused = b.refused + _apply_bulk_page.refused,
        refusals = (b.refusals || reasons)[1:20],
        leased_until = statement_timestamp() + make_interval(secs => p_lease_seconds), updated_at = gen_durable.clock(),
        state = case when p_is_last then 'done' else b.state end,
        ended_at = case when p_is_last then gen_durable.clock() end
    where b.id = p_id;
    if p_is_last then
        insert into gen_durable.audit (actor, source, channel, action, subject, succeeded, outcome, ended_at)
        select b.actor, b.source, b.channel, format('bulk %s ended', b.action), format('bulk %s', b.id), true,
            format('%s changed, %s refused, %s examined', b.changed, b.refused, b.examined), gen_durable.clock()
        from gen_durable.bulk_actions b where b.id = p_id;
    end if;
    return next;
end $$;

-- schema/functions/_end_repeating_timers.sql
-- Cancels the repeating timers of a wait in the transaction that ends the wait, whatever ends it: a
-- signal, the last child, a deadline, a cancel, an operator.
--   called by: the trigger instances_end_repeating_timers      index: timers_repeating
--   locks: the pending timers of the instance, after the instance's own row; a transaction that
--   fires one of these timers locks the instance's row first as well
create function gen_durable._end_repeating_timers() returns trigger
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.instance_id = new.id and t.state = 'pending';
    return null;
end $$;
create trigger instances_end_repeating_timers after update of status on gen_durable.instances
    for each row
    when (old.has_repeating_timers and old.status in ('awaiting_signal', 'awaiting_children') and new.status <> old.status)
    execute function gen_durable._end_repeating_timers();

-- schema/functions/_insert_repeating_timers.sql
-- Inserts the repeating timers of a wait, unless the same commit has already ended the wait (by a
-- signal in the inbox, or because no child was spawned).
--   called by: _apply_effects      index: instances_pkey
--   locks: the instance's row, which the caller has locked
create function gen_durable._insert_repeating_timers(p_instance bigint, p_repeating jsonb) returns void
language plpgsql
as $$
-- planner: pinned
begin
    insert into gen_durable.timers (instance_id, await_seq, due_at, anchor_at, remaining, cycle, missed, new_instance)
    select i.id, i.step_seq, greatest((r->>'due')::timestamptz, gen_durable.clock()), (r->>'anchor')::timestamptz,
        (r->>'remaining')::int, r->>'cycle', r->>'missed', r->'new_instance'
    from gen_durable.instances i
    cross join jsonb_array_elements(p_repeating) r
    where i.id = p_instance and i.status in ('awaiting_signal', 'awaiting_children');
    if found then
        update gen_durable.instances i set has_repeating_timers = true where i.id = p_instance and not i.has_repeating_timers;
    end if;
end $$;

-- schema/functions/_upcoming.sql
-- Returns when timers and deadlines fall due, from p_since seconds before now up to p_horizon
-- seconds after. A worker keeps these times in memory to wake its timer loop. The first row carries
-- only the time of the database.
--   called by: store::timer::upcoming      index: timers_due, instances_deadlines
--   locks: nothing
create function gen_durable._upcoming(p_since float8, p_horizon float8, p_limit int)
returns table (due_at timestamptz, is_timer boolean, now timestamptz)
language plpgsql stable
as $$
-- planner: pinned, generic
#variable_conflict use_column
begin
    return query
    select null::timestamptz, false, gen_durable.clock()
    union all
    (select i.deadline_at, false, null::timestamptz from gen_durable.instances i
     where i.deadline_at > gen_durable.clock() - make_interval(secs => p_since) and i.deadline_at <= gen_durable.clock() + make_interval(secs => p_horizon)
     order by i.deadline_at limit p_limit)
    union all
    (select t.due_at, true, null::timestamptz from gen_durable.timers t
     where t.state = 'pending' and t.due_at > gen_durable.clock() - make_interval(secs => p_since)
       and t.due_at <= gen_durable.clock() + make_interval(secs => p_horizon)
     order by t.due_at limit p_limit);
end $$;

-- schema/functions/_due_timers.sql
-- Returns due timers that the calling worker can fire: all repeating timers of waits, and the
-- timers of the schedules that the worker has registered. The last row has no id and carries the
-- time.
--   called by: store::timer::due      index: timers_due
--   locks: nothing: `_fire` checks each timer again under its lock
create function gen_durable._due_timers(
    p_limit int, p_since float8, p_until float8, p_from timestamptz, p_schedules text[], p_except bigint[]
) returns table (
    id bigint, due_at timestamptz, anchor_at timestamptz, remaining int, missed_count int, manual boolean, cycle text,
    missed text, schedule text, now timestamptz
)
language plpgsql stable
as $$
-- planner: pinned, generic
#variable_conflict use_column
begin
    return query
    select t.id, t.due_at, t.anchor_at, t.remaining, t.missed_count, t.manual, t.cycle, t.missed, t.schedule, gen_durable.clock()
    from gen_durable.timers t
    where t.state = 'pending' and t.due_at <= gen_durable.clock() - make_interval(secs => p_until)
      and t.due_at >= greatest(p_from, case when p_since < 'infinity' then gen_durable.clock() - make_interval(secs => p_since) end)
      and (t.schedule is null or t.schedule = any (p_schedules))
      and t.id <> all (p_except)
    order by t.due_at, t.id
    limit p_limit;
    return query
    select null::bigint, null::timestamptz, null::timestamptz, null::int, null::int, null::boolean, null, null, null,
        gen_durable.clock();
end $$;

-- schema/functions/_fire.sql
-- Fires timers that are still pending and due by the clock of the database. One transaction inserts
-- the started instance and the next occurrence, and ends the timer. A missed occurrence starts no
-- instance; this function then only ends the timer and inserts the next occurrence.
--   called by: store::timer::fire
--   index: timers_pkey, schedules_pkey, instances_pkey, instances_key
--   locks: the schedule's row, or the row of the instance that waits; then the timer. It skips
--   locked rows. The insert of an instance with a key waits for a transaction that has inserted the
--   same key, for at most p_lock_timeout.
-- Returns one row per timer: 'fired', 'missed', 'cancelled' (the wait has ended, or the schedule is
-- paused), or 'held' (another transaction has locked a row: try again).
create function gen_durable._fire(p_entries jsonb, p_lock_timeout text)
returns table (
    id bigint, answer text, late float8, started_id bigint, queue text, priority smallint, eligible_at timestamptz,
    next_due timestamptz
)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    entry jsonb;
    timer gen_durable.timers;
    owner record;
    made record;
    lives boolean;
    new_instance jsonb;
    begun bigint;
begin
    if p_lock_timeout is not null then
        perform set_config('lock_timeout', p_lock_timeout, true);
    end if;
    for entry in select e from jsonb_array_elements(p_entries) with ordinality x(e, o) order by o loop
        id := (entry->>'id')::bigint;
        select t.* into timer from gen_durable.timers t where t.id = (entry->>'id')::bigint;
        continue when timer.id is null or timer.state <> 'pending';
        answer := 'held'; late := null; started_id := null; queue := null; priority := null; eligible_at := null; next_due := null;
        -- Locks the row of the waiting instance or of the schedule first, as a transaction does
        -- that ends the wait or changes the schedule. So that transaction sees every occurrence
        -- that was inserted before it, and no occurrence is inserted after it.
        if timer.schedule is null then
            select i.status, i.step_seq into owner from gen_durable.instances i where i.id = timer.instance_id
            for no key update skip locked;
            if not found and exists (select from gen_durable.instances i where i.id = timer.instance_id) then
                return next;
                continue;
            end if;
            lives := coalesce(owner.status in ('awaiting_signal', 'awaiting_children') and owner.step_seq = timer.await_seq, false);
            new_instance := timer.new_instance;
        else
            select s.paused_at into owner from gen_durable.schedules s where s.name = timer.schedule
            for no key update skip locked;
            if not found then
                return next;
                continue;
            end if;
            lives := owner.paused_at is null or timer.manual;
            new_instance := entry->'new_instance';
        end if;
        select t.* into timer from gen_durable.timers t
        where t.id = (entry->>'id')::bigint and t.state = 'pending' and t.due_at = (entry->>'due')::timestamptz
          and t.due_at <= gen_durable.clock()
        for update skip locked;
        if not found then
            return next;
            continue;
        end if;
        late := extract(epoch from gen_durable.clock() - timer.due_at);
        if not lives then
            update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock() where t.id = timer.id;
            answer := 'cancelled';
            return next;
            continue;
        end if;
        if (entry->>'happens')::boolean then
            select m.id, m.eligible_at into made from gen_durable.enqueue_all(jsonb_build_array(new_instance)) m;
            begun := made.id; started_id := made.id; eligible_at := made.eligible_at;
            queue := coalesce(new_instance->>'queue', 'default'); priority := coalesce((new_instance->>'priority')::smallint, 0::smallint);
            answer := 'fired';
        else
            begun := null;
            answer := 'missed';
        end if;
        update gen_durable.timers t set state = answer, ended_at = gen_durable.clock(), started_id = begun where t.id = timer.id;
        -- A manual timer has no next occurrence: the change of the cycle that makes an overdue
        -- timer manual has already inserted the next occurrence.
        if entry ? 'next' and not timer.manual then
            next_due := (entry->>'next')::timestamptz;
            insert into gen_durable.timers
                (due_at, anchor_at, instance_id, await_seq, remaining, missed_count, cycle, missed, schedule, new_instance)
            values (next_due, timer.anchor_at, timer.instance_id, timer.await_seq, (entry->>'remaining')::int,
                coalesce((entry->>'missed')::int, 0), timer.cycle, timer.missed, timer.schedule, timer.new_instance);
        end if;
        if timer.schedule is not null then
            update gen_durable.schedules s
            set last_error = null, ended_at = case when timer.manual or entry ? 'next' then s.ended_at else gen_durable.clock() end
            where s.name = timer.schedule
              and (s.last_error is not null or not (timer.manual or entry ? 'next'));
        end if;
        return next;
    end loop;
end $$;

-- schema/functions/cancel_timer.sql
-- Cancels a timer, and so all later occurrences of a repeating timer. Returns 'cancelled',
-- 'too_late', 'no_target', or 'schedule': a regular occurrence of a schedule cannot be cancelled.
--   called by: store::timer::cancel, SQL      index: timers_pkey, instances_pkey
--   locks: the instance that waits, then the timer: it waits for a transaction that fires the timer
create function gen_durable.cancel_timer(p_id bigint) returns text
language plpgsql
as $$
-- planner: pinned
declare
    timer gen_durable.timers;
begin
    select t.* into timer from gen_durable.timers t where t.id = p_id;
    if timer.id is null then
        return 'no_target';
    end if;
    if timer.schedule is not null and not timer.manual then
        return 'schedule';
    end if;
    perform i.id from gen_durable.instances i where i.id = timer.instance_id for no key update;
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.id = p_id and t.state = 'pending';
    return case when found then 'cancelled' else 'too_late' end;
end $$;

-- schema/functions/_expire.sql
-- Ends waits and joins at their deadline: the instance becomes runnable at its `deadline_step`.
--   called by: store::timer::expire      index: instances_deadlines
--   locks: the waiting instances, skipping locked rows: a signal that is being delivered at that
--   moment ends the wait
-- Reads deadlines between p_since and p_until seconds before now: the front of the index is full of
-- dead entries, and callers process deadlines that are long overdue at a separate rate. The last
-- row has no id and carries the time.
create function gen_durable._expire(
    p_limit int, p_since float8 default 'infinity', p_until float8 default 0, p_from timestamptz default '-infinity'
) returns table (id bigint, queue text, priority smallint, due_at timestamptz, now timestamptz)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    expired record;
begin
    for expired in
    with due as materialized (
        select i.id, i.deadline_at from gen_durable.instances i
        where i.deadline_at <= gen_durable.clock() - make_interval(secs => p_until)
          and i.deadline_at >= greatest(p_from, case when p_since < 'infinity' then gen_durable.clock() - make_interval(secs => p_since) end)
        order by i.deadline_at
        limit p_limit
        for no key update skip locked
    )
    update gen_durable.instances i
    set status = 'runnable', step = i.deadline_step, data = i.deadline_data, awaits = null, attempt = 0, failures = 0,
        step_seq = i.step_seq + 1, step_entry_seq = i.step_seq + 1, eligible_at = gen_durable.clock(),
        deadline_at = null, deadline_step = null, deadline_data = null, updated_at = gen_durable.clock(),
        -- The worker that claims the instance computes the limits of this step.
        limit_group = null, limit_weight = null,
        partition_waiting = i.partition_key is not null,
        arrival_no = case when i.partition_key is not null then nextval('gen_durable.arrival_numbers') else i.arrival_no end
    from due
    -- Compares the status of the instance as text: a literal of the enum would allow this update a
    -- scan of the index of all waiting instances.
    where i.id = due.id and i.status::text in ('awaiting_signal', 'awaiting_children')
    returning i.id, i.queue, i.priority, due.deadline_at, i.step_seq, i.claim_epoch, i.step
    loop
        perform gen_durable._record_deadline(expired.id, expired.step_seq, expired.claim_epoch, expired.step);
        return query select expired.id, expired.queue, expired.priority, expired.deadline_at, gen_durable.clock();
    end loop;
    return query select null::bigint, null::text, null::smallint, null::timestamptz, gen_durable.clock();
end $$;

-- schema/functions/_insert_next_timer.sql
-- Replaces the pending regular occurrence of a schedule with the given one.
--   called by: _register_schedule, _set_schedule, _resume_schedule      index: timers_next
--   locks: the timers of the schedule; the caller has locked the schedule's row
create function gen_durable._insert_next_timer(p_name text, p_due timestamptz, p_remaining int) returns void
language plpgsql
as $$
-- planner: pinned
begin
    -- An overdue occurrence of the schedule still happens, as a manual timer that no occurrence
    -- follows, unless its misfire policy is to skip it.
    update gen_durable.timers t set manual = true
    where t.schedule = p_name and t.state = 'pending' and not t.manual and t.due_at <= gen_durable.clock() and t.missed <> 'skip';
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.schedule = p_name and t.state = 'pending' and not t.manual;
    if p_due is not null then
        -- If the schedule already has a timer with this due time, this statement inserts no second
        -- timer: an ended timer stays as it is, and a pending timer becomes the regular occurrence.
        insert into gen_durable.timers as t (schedule, due_at, anchor_at, remaining, cycle, missed)
        select s.name, p_due, s.anchor_at, p_remaining, s.cycle, s.missed from gen_durable.schedules s where s.name = p_name
        on conflict (schedule, due_at) where schedule is not null and state <> 'cancelled' do update set manual = false,
            anchor_at = excluded.anchor_at, remaining = excluded.remaining, cycle = excluded.cycle, missed = excluded.missed
        where t.state = 'pending';
    end if;
    update gen_durable.schedules s set ended_at = case when p_due is null then gen_durable.clock() end where s.name = p_name;
end $$;

-- schema/functions/_register_schedule.sql
-- Registers the cycle that the code has for a schedule. An engine calls it when it starts and
-- regularly after that. A new cycle comes into force ('new', 'changed', or 'replaced' if an
-- operator had set the cycle). The cycle that the code registered last changes nothing, even if an
-- operator has set another ('known'). A cycle that newer code has replaced comes from an older
-- build and changes nothing ('older'), unless no build has registered the newer cycle for five
-- minutes: then the deployment was rolled back.
--   called by: store::schedule::register      index: schedules_pkey
--   locks: the schedule's row, then its pending timer; nothing if nothing changes
create function gen_durable._register_schedule(
    p_name text, p_cycle text, p_missed text, p_anchor timestamptz, p_first timestamptz, p_remaining int
) returns text
language plpgsql
as $$
-- planner: pinned
declare
    known gen_durable.schedules;
    said text := p_cycle || ' ' || p_missed;
    was text;
begin
    insert into gen_durable.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at)
    values (p_name, p_cycle, p_missed, p_cycle, p_missed, p_anchor)
    on conflict (name) do nothing;
    if found then
        perform gen_durable._insert_next_timer(p_name, p_first, p_remaining);
        return 'new';
    end if;
    if exists (select from gen_durable.schedules s where s.name = p_name and s.code_cycle = p_cycle and s.code_missed = p_missed
               and s.challenged_at is null) then
        return 'known';
    end if;
    select s.* into known from gen_durable.schedules s where s.name = p_name for no key update;
    was := known.code_cycle || ' ' || known.code_missed;
    if said = was then
        update gen_durable.schedules s set challenged_at = null where s.name = p_name;
        return 'known';
    elsif said = any (known.code_replaced)
          and coalesce(known.challenged_at, gen_durable.clock()) > gen_durable.clock() - interval '5 minutes' then
        update gen_durable.schedules s set challenged_at = gen_durable.clock() where s.name = p_name and s.challenged_at is null;
        return 'older';
    end if;
    update gen_durable.schedules s
    set missed = p_missed, code_cycle = p_cycle, code_missed = p_missed, challenged_at = null,
        code_replaced = (was || array_remove(s.code_replaced, said))[:50]
    where s.name = p_name;
    if known.code_cycle = p_cycle then
        -- Only the misfire policy of the schedule has changed: the cycle continues from its anchor.
        update gen_durable.timers t set missed = p_missed where t.schedule = p_name and t.state = 'pending' and not t.manual;
        return 'changed';
    end if;
    update gen_durable.schedules s
    set cycle = p_cycle, anchor_at = p_anchor, set_at = null, set_by = null, remaining = p_remaining, ended_at = null
    where s.name = p_name;
    if known.paused_at is null then
        perform gen_durable._insert_next_timer(p_name, p_first, p_remaining);
    end if;
    return case when known.set_at is null then 'changed' else 'replaced' end;
end $$;

-- schema/functions/_set_schedule.sql
-- Sets the cycle of a schedule, for an operator. The cycle is in force until the code registers a
-- new one.
--   called by: store::schedule::set      index: schedules_pkey
--   locks: the schedule's row, then its pending timer
create function gen_durable._set_schedule(
    p_name text, p_cycle text, p_missed text, p_anchor timestamptz, p_first timestamptz, p_remaining int, p_by text
) returns text
language plpgsql
as $$
-- planner: pinned
declare
    known gen_durable.schedules;
begin
    select s.* into known from gen_durable.schedules s where s.name = p_name for no key update;
    if known.name is null then
        return 'no_target';
    end if;
    update gen_durable.schedules s
    set cycle = p_cycle, missed = coalesce(p_missed, s.missed), anchor_at = p_anchor, set_at = gen_durable.clock(), set_by = p_by,
        remaining = p_remaining, ended_at = null
    where s.name = p_name;
    if known.paused_at is null then
        perform gen_durable._insert_next_timer(p_name, p_first, p_remaining);
    end if;
    return 'done';
end $$;

-- schema/functions/pause_schedule.sql
-- Pauses a schedule: no regular occurrence happens until an operator resumes the schedule.
--   called by: store::schedule::pause      index: schedules_pkey, timers_next
--   locks: the schedule's row, then its pending timer
create function gen_durable.pause_schedule(p_name text, p_by text) returns text
language plpgsql
as $$
-- planner: pinned
declare
    known gen_durable.schedules;
begin
    select s.* into known from gen_durable.schedules s where s.name = p_name for no key update;
    if known.name is null then
        return 'no_target';
    elsif known.paused_at is not null then
        return 'too_late';
    end if;
    update gen_durable.schedules s
    set paused_at = gen_durable.clock(), paused_by = p_by,
        remaining = (select t.remaining from gen_durable.timers t
                     where t.schedule = p_name and t.state = 'pending' and not t.manual)
    where s.name = p_name;
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.schedule = p_name and t.state = 'pending' and not t.manual;
    return 'done';
end $$;

-- schema/functions/_resume_schedule.sql
-- Resumes a paused schedule with its next occurrence; occurrences during the pause do not happen.
-- Returns 'changed' if the caller computed the next occurrence from a cycle that is not in force
-- any more: the caller has to compute it again.
--   called by: store::schedule::resume      index: schedules_pkey
--   locks: the schedule's row
create function gen_durable._resume_schedule(p_name text, p_cycle text, p_anchor timestamptz, p_next timestamptz, p_remaining int)
returns text
language plpgsql
as $$
-- planner: pinned
declare
    known gen_durable.schedules;
begin
    select s.* into known from gen_durable.schedules s where s.name = p_name for no key update;
    if known.name is null then
        return 'no_target';
    elsif known.paused_at is null then
        return 'too_late';
    elsif known.cycle <> p_cycle or known.anchor_at <> p_anchor then
        return 'changed';
    end if;
    update gen_durable.schedules s set paused_at = null, paused_by = null where s.name = p_name;
    if known.ended_at is null then
        perform gen_durable._insert_next_timer(p_name, p_next, p_remaining);
    end if;
    return 'done';
end $$;

-- schema/functions/run_schedule.sql
-- Adds a manual occurrence of a schedule that is due now, for an operator. Any worker that has
-- registered the schedule fires the occurrence, even while the schedule is paused. Returns the id
-- of the timer.
--   called by: store::schedule::run      index: schedules_pkey
--   locks: the schedule's row
create function gen_durable.run_schedule(p_name text) returns bigint
language plpgsql
as $$
-- planner: pinned
declare
    made bigint;
begin
    perform s.name from gen_durable.schedules s where s.name = p_name for no key update;
    -- If a timer of this schedule with the same due time exists already, this statement inserts no
    -- second timer.
    insert into gen_durable.timers (schedule, due_at, anchor_at, cycle, missed, manual)
    select s.name, gen_durable.clock(), s.anchor_at, s.cycle, s.missed, true from gen_durable.schedules s where s.name = p_name
    on conflict (schedule, due_at) where schedule is not null and state <> 'cancelled' do nothing
    returning id into made;
    return coalesce(made, (select t.id from gen_durable.timers t
                           where t.schedule = p_name and t.due_at = gen_durable.clock() and t.state <> 'cancelled'));
end $$;

-- schema/functions/_place_events_locked.sql
-- Assigns log positions to those events of these tenants that have none. The caller has locked the
-- log heads of the tenants.
--   called by: _append, _place_events
--   index: events_unplaced, events_log, events_pkey, event_scans_pkey
--   locks: the events to which it assigns a position
create function gen_durable._place_events_locked(p_tenants text[], p_all boolean) returns table (tenant text, placed bigint)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
begin
    return query
    with head as materialized (
        select t.tenant,
            case when not p_all then (
                select l.looked from gen_durable.event_scans l where l.tenant = t.tenant order by l.n desc limit 1) end as looked
        from unnest(p_tenants) as t(tenant)
    ),
    waiting as materialized (
        select head.tenant, found.arrival_no, row_number() over (partition by head.tenant order by found.arrival_no) as place
        from head
        cross join lateral (
            select e.arrival_no from gen_durable.events e
            where e.tenant = head.tenant and e.position is null
              and e.xid >= coalesce(pg_snapshot_xmax(head.looked), '0'::xid8)
            union all
            -- `offset 0` makes the planner keep the order of this join: with the tables in the
            -- reverse order, the join would read every event.
            select late.arrival_no
            from pg_snapshot_xip(head.looked) as under_way(xid)
            cross join lateral (
                select e.arrival_no from gen_durable.events e
                where e.tenant = head.tenant and e.position is null and e.xid = under_way.xid
                offset 0) late
        ) found
    ),
    log_position as materialized (
        select distinct on (waiting.tenant) waiting.tenant, coalesce((
            select e.position from gen_durable.events e
            where e.tenant = waiting.tenant and e.position is not null
            order by e.position desc limit 1), 0) as position
        from waiting
    ),
    given as (
        update gen_durable.events e
        set position = log_position.position + waiting.place
        from waiting join log_position on log_position.tenant = waiting.tenant
        where e.arrival_no = waiting.arrival_no
        returning e.tenant
    ),
    counted as materialized (
        select given.tenant, count(*) as placed from given group by given.tenant
    ),
    -- Stores the snapshot of this statement, which reads the events without a log position: the
    -- next scan reads only events that are not visible in this snapshot.
    noted as (
        insert into gen_durable.event_scans (tenant, looked) select counted.tenant, pg_current_snapshot() from counted
    ),
    forgotten as (
        delete from gen_durable.event_scans l using counted where l.tenant = counted.tenant
    )
    select head.tenant, coalesce(counted.placed, 0) from head left join counted on counted.tenant = head.tenant;
end $$;

-- schema/functions/_place_events.sql
-- Assigns log positions to those events of these tenants that have none. Skips a tenant if another
-- transaction has locked its log head. Returns the tenants that it processed.
--   called by: store::events::place      index: event_heads_pkey; as _place_events_locked
--   locks: log heads (rows of event_heads) by tenant, skipping locked rows: it waits for no lock
create function gen_durable._place_events(p_tenants text[], p_all boolean default false) returns table (tenant text, placed bigint)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    held text[];
begin
    insert into gen_durable.event_heads (tenant)
    select distinct wanted.tenant from unnest(p_tenants) as wanted(tenant)
    where not exists (select from gen_durable.event_heads h where h.tenant = wanted.tenant)
    order by 1
    on conflict do nothing;
    held := array(
        select h.tenant from gen_durable.event_heads h
        where h.tenant = any (p_tenants) order by h.tenant for no key update skip locked);
    return query select * from gen_durable._place_events_locked(held, p_all);
end $$;

-- schema/functions/_append.sql
-- Appends events to the logs of their tenants, in the order of the arrays. An array may be empty if
-- every value is the default.
--   called by: store::events, _record_result_events
--   index: event_heads_pkey, events_log, events_unplaced, event_scans_pkey
--   locks: heads of logs (rows of event_heads), by tenant. With p_heads = 'wait' it waits for
--   locked heads. With 'skip' it skips locked heads, and the events of those logs get their
--   position later. With 'none' it locks no head and all events get their position later: for a
--   transaction that the caller ends.
-- Returns a row per event, in the order of the arrays: the position, if it is assigned already, and
-- the arrival number.
create function gen_durable._append(
    p_tenants text[], p_names text[], p_versions int[], p_payloads text[], p_headers text[],
    p_instances bigint[], p_steps text[], p_heads text
) returns table (tenant text, pos bigint, arrival_no bigint)
language plpgsql
as $$
-- planner: pinned, generic
#variable_conflict use_column
declare
    wanted text[];
    held text[] := '{}';
begin
    if p_heads <> 'none' then
        -- Ensures that the events are durable before anything that depends on them begins, even if
        -- the role or the database turns synchronous_commit off.
        if current_setting('synchronous_commit') = 'off' then
            perform set_config('synchronous_commit', 'on', true);
        end if;
        wanted := array(select distinct t from unnest(p_tenants) t order by t);
        insert into gen_durable.event_heads (tenant)
        select missing.tenant from unnest(wanted) as missing(tenant)
        where not exists (select from gen_durable.event_heads h where h.tenant = missing.tenant)
        order by missing.tenant
        on conflict do nothing;
        if p_heads = 'wait' then
            held := array(
                select h.tenant from gen_durable.event_heads h
                where h.tenant = any (wanted) order by h.tenant for no key update);
        else
            held := array(
                select h.tenant from gen_durable.event_heads h
                where h.tenant = any (wanted) order by h.tenant for no key update skip locked);
        end if;
        if cardinality(held) > 0 then
            perform gen_durable._place_events_locked(held, false);
        end if;
    end if;
    -- The insert of the events is a statement of its own, so that its snapshot is newer than the
    -- locks on the log heads: it reads the last positions, and no other transaction appends to
    -- these logs now.
    return query
    with log_position as materialized (
        select h.tenant, coalesce((
            select e.position from gen_durable.events e
            where e.tenant = h.tenant and e.position is not null
            order by e.position desc limit 1), 0) as position
        from unnest(held) as h(tenant)
    )
    insert into gen_durable.events as made (tenant, name, version, payload, headers, instance_id, step, position, xid)
    select e.tenant, e.name, coalesce(e.version, 1), e.payload::jsonb, e.headers::jsonb, e.instance_id, e.step,
        log_position.position + row_number() over (partition by e.tenant order by e.place),
        case when log_position.position is null then pg_current_xact_id() end
    from unnest(p_tenants, p_names, p_versions, p_payloads, p_headers, p_instances, p_steps)
        with ordinality as e(tenant, name, version, payload, headers, instance_id, step, place)
    left join log_position on log_position.tenant = e.tenant
    order by e.place
    returning made.tenant, made.position, made.arrival_no;
end $$;

-- schema/functions/_record_result_events.sql
-- Appends the events of the step results that were written. In a step's own transaction, which the
-- caller ends, it locks no log heads.
--   called by: _write_step_results_with_effects      index: as _append
--   locks: log heads by tenant, skipping locked rows
create function gen_durable._record_result_events(p_results jsonb, p_written bigint[], p_own_transaction boolean) returns void
language plpgsql
set search_path = gen_durable, pg_temp
as $$
begin
    perform from (
        select array_agg(r->>'tenant' order by o, n) tenants, array_agg(r->>'name' order by o, n) names,
            array_agg((r->>'version')::int order by o, n) versions, array_agg((r->'payload')::text order by o, n) payloads,
            array_agg((r->'headers')::text order by o, n) headers,
            array_agg((e->>'id')::bigint order by o, n) instances, array_agg(r->>'step' order by o, n) steps
        from jsonb_array_elements(p_results) with ordinality x(e, o)
        cross join lateral jsonb_array_elements(e->'events') with ordinality y(r, n)
        where e ? 'events' and (e->>'id')::bigint = any (p_written)
    ) a
    cross join lateral gen_durable._append(a.tenants, a.names, a.versions, a.payloads, a.headers, a.instances, a.steps,
        case when p_own_transaction then 'none' else 'skip' end)
    where a.tenants is not null;
end $$;

-- schema/functions/record.sql
-- Records an event in the caller's transaction, for SQL and other languages. The event gets its
-- position after that transaction has committed.
--   called by: SQL      index: none
--   locks: nothing
create function gen_durable.record(
    tenant text, name text, payload jsonb, version int default 1, headers jsonb default null
) returns bigint
language sql
set search_path = gen_durable, pg_temp
as $$
    insert into gen_durable.events (tenant, name, version, payload, headers, xid)
    values (coalesce(record.tenant, ''), record.name, coalesce(record.version, 1), record.payload, record.headers, pg_current_xact_id())
    returning arrival_no
$$;

-- schema/functions/_discover.sql
-- Returns tenants with new events. These are tenants with events without a position, recorded by
-- transactions that had not ended in the snapshot p_looked, and tenants with positioned events that
-- have an arrival number above p_from. The last row has no tenant and says how far this scan has
-- read.
--   called by: store::events::discover      index: events_unplaced_all, events_pkey
--   locks: nothing
create function gen_durable._discover(p_looked pg_snapshot, p_from bigint, p_limit int)
returns table (tenant text, unplaced boolean, arrival_no bigint, looked text, pos bigint)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
begin
    return query
    with waiting as materialized (
        select e.tenant from gen_durable.events e
        where e.position is null and e.xid >= coalesce(pg_snapshot_xmax(p_looked), '0'::xid8)
        union all
        select late.tenant
        from pg_snapshot_xip(p_looked) as under_way(xid)
        cross join lateral (
            select e.tenant from gen_durable.events e where e.position is null and e.xid = under_way.xid offset 0) late
    ),
    latest as materialized (
        select coalesce((select e.arrival_no from gen_durable.events e order by e.arrival_no desc limit 1), 0) as arrival_no
    ),
    arrived as materialized (
        select e.tenant, e.arrival_no, e.position from gen_durable.events e
        where p_from is not null and e.arrival_no > p_from and e.position is not null
        order by e.arrival_no
        limit p_limit
    )
    select distinct waiting.tenant, true, null::bigint, null::text, null::bigint from waiting
    union all
    select arrived.tenant, false, null::bigint, null::text, max(arrived.position) from arrived group by arrived.tenant
    union all
    select null, null,
        case when (select count(*) from arrived) < p_limit then latest.arrival_no
             else (select max(arrived.arrival_no) from arrived) end,
        pg_current_snapshot()::text, null::bigint
    from latest;
end $$;

-- schema/functions/_walk_page.sql
-- Returns the next page of a pass over all tenants (a row of log_walks) and moves the row to the
-- end of the page. Returns null if the pass is not due, or another worker has locked the row. The
-- first element is the tenant after which the page begins, null for the first page; the other
-- elements are the tenants of the page.
--   called by: _scopes_behind, _trim_logs      index: log_walks_pkey, event_heads_pkey
--   locks: the row of log_walks, skipping it if another worker holds it
create function gen_durable._walk_page(
    p_walk text, p_projection text, p_version int, p_page int, p_pause float8, p_idle float8
) returns text[]
language plpgsql
as $$
-- planner: pinned
declare
    walk gen_durable.log_walks;
    tenants text[];
begin
    if not exists (select from gen_durable.log_walks w
                   where w.walk = p_walk and w.projection = p_projection and w.version = p_version) then
        insert into gen_durable.log_walks (walk, projection, version) values (p_walk, p_projection, p_version)
        on conflict do nothing;
    end if;
    select w.* into walk from gen_durable.log_walks w
    where w.walk = p_walk and w.projection = p_projection and w.version = p_version and w.due_at <= statement_timestamp()
    for no key update skip locked;
    if not found then
        return null;
    end if;
    tenants := array(
        select h.tenant from gen_durable.event_heads h
        where h.tenant >= coalesce(walk.after_tenant, '') and h.tenant is distinct from walk.after_tenant
        order by h.tenant limit p_page);
    update gen_durable.log_walks w
    set after_tenant = case when cardinality(tenants) = p_page then tenants[p_page] end,
        due_at = statement_timestamp()
            + make_interval(secs => case when cardinality(tenants) = p_page then p_pause else p_idle end)
    where w.walk = p_walk and w.projection = p_projection and w.version = p_version;
    return walk.after_tenant || tenants;
end $$;

-- schema/functions/_trim_logs.sql
-- Deletes old events of the next page of tenants, up to p_limit. It keeps the last event of each
-- log, which defines the log's last position, and every event that a projection or a run has not
-- read yet; a projection without a scope for a tenant has read nothing of that tenant's log. A log
-- with a first event that is not old enough costs one index probe. Returns how many events were
-- deleted, and whether there may be more to delete now.
--   called by: store::events::_trim_logs
--   index: events_log, events_pkey, projections_by_name, projections_pkey, projection_runs_open
--   locks: as _walk_page, then the events that it deletes
create function gen_durable._trim_logs(
    p_older_seconds float8, p_followers text[], p_page int, p_limit int, p_idle float8
) returns table (gone bigint, more boolean)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
declare
    page text[] := gen_durable._walk_page('trim', '', 0, p_page, 0, p_idle);
    young timestamptz := gen_durable.clock() - make_interval(secs => p_older_seconds);
    followers text[];
    count bigint;
begin
    if page is null then
        return query select 0::bigint, false;
        return;
    end if;
    followers := array(
        -- Jumps from one projection name to the next in the index of scopes: the cost depends on
        -- the number of projections, and not on the number of scopes.
        with recursive name as (
            (select p.projection from gen_durable.projections p order by p.projection limit 1)
            union all
            select (select p.projection from gen_durable.projections p where p.projection > name.projection
                    order by p.projection limit 1)
            from name where name.projection is not null)
        select name.projection from name where name.projection is not null union select unnest(p_followers));
    with aged as materialized (
        select t.tenant
        from unnest(page[2:]) as t(tenant)
        cross join lateral (
            select e.at from gen_durable.events e
            where e.tenant = t.tenant and e.position is not null order by e.position limit 1) first
        where first.at < young
    ),
    floor as materialized (
        select aged.tenant, least(
            (select e.position - 1 from gen_durable.events e
             where e.tenant = aged.tenant and e.position is not null order by e.position desc limit 1),
            (select min(p.position) from gen_durable.projections p where p.tenant = aged.tenant),
            case when exists (
                select from unnest(followers) as follower(name)
                where not exists (
                    select from gen_durable.projections p where p.tenant = aged.tenant and p.projection = follower.name))
                then 0 end,
            (select min(r.position) from gen_durable.projection_runs r
             where r.tenant = aged.tenant and r.finished_at is null)) as position
        from aged
    ),
    old as materialized (
        select o.arrival_no
        from floor
        cross join lateral (
            select e.arrival_no, e.at from gen_durable.events e
            where e.tenant = floor.tenant and e.position <= floor.position
            order by e.position limit p_limit) o
        where o.at < young
        limit p_limit
    ),
    deleted as (
        delete from gen_durable.events e using old where e.arrival_no = old.arrival_no returning 1
    )
    select count(*) into count from deleted;
    if count >= p_limit then
        -- The logs of this page of tenants may have more old events, so the next call reads the
        -- same page again.
        update gen_durable.log_walks w set after_tenant = page[1], due_at = statement_timestamp()
        where w.walk = 'trim' and w.projection = '' and w.version = 0;
    end if;
    return query select count, count >= p_limit or cardinality(page) > p_page;
end $$;

-- schema/functions/generation.sql
-- Returns the generation of the rows that readers of a projection have to read. Call it in the
-- statement that reads the rows, or in the same REPEATABLE READ transaction.
--   called by: SQL, projections of applications      index: projections_pkey      locks: nothing
create function gen_durable.generation(p_tenant text, p_projection text) returns int
    language sql stable parallel safe
    as $$ select coalesce((select p.generation from gen_durable.projections p
                           where p.tenant = p_tenant and p.projection = p_projection), 1) $$;

-- schema/functions/_events_after.sql
-- Returns the events of a tenant after the position p_after, up to p_to: at most p_limit events and
-- about p_bytes of payload, but at least one event. Events with a name that is not in p_names have
-- no payload.
--   called by: _project_open, _run_open      index: events_log
--   locks: nothing
create function gen_durable._events_after(
    p_tenant text, p_after bigint, p_to bigint, p_names text[], p_limit int, p_bytes bigint
) returns table (pos bigint, at timestamptz, name text, version int, payload text, headers text, instance_id bigint, step text)
language sql stable
as $$
-- planner: pinned
    select f.position, f.at, f.name, f.version, case when f.name = any (p_names) then f.payload::text end, f.headers::text,
        f.instance_id, f.step
    from (
        select e.*, sum(pg_column_size(e.payload)) over (order by e.position) - pg_column_size(e.payload) as before
        from (
            select * from gen_durable.events e
            where e.tenant = p_tenant and e.position > p_after and e.position <= coalesce(p_to, 9223372036854775807)
            order by e.position
            limit p_limit
        ) e
    ) f
    where f.before < p_bytes
    order by f.position
$$;

-- schema/functions/_project_open.sql
-- Begins a batch of a projection: returns whether the worker may apply events to the scope, the
-- position of the scope, and the next events. The first row has no event. A redrive (p_redrive)
-- applies one parked event out of order. The redrive is blocked while the position of the scope is
-- before that event, since the normal batches will apply the event, and while a run is open, since
-- the run may apply the event.
--   called by: store::projections::open
--   index: projections_pkey, events_log, projection_failures_pkey, projection_runs_open
--   locks: the scope's row, skipping it if it is locked. The lock only saves work: the condition on
--   the position in _project_close decides which worker commits.
create function gen_durable._project_open(
    p_tenant text, p_projection text, p_version int, p_worker uuid, p_names text[], p_limit int, p_bytes bigint,
    p_redrive bigint, p_force boolean
) returns table (
    verdict text, scope_position bigint, generation int, applied bigint, replaying_to bigint, attempts int, scope_version int,
    wait_seconds float8,
    pos bigint, at timestamptz, name text, version int, payload text, headers text, instance_id bigint, step text
)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    scope gen_durable.projections;
    verdict text := 'go';
    wait_seconds float8 := 0;
begin
    if not exists (select from gen_durable.projections p where p.tenant = p_tenant and p.projection = p_projection) then
        insert into gen_durable.projections (tenant, projection, version) values (p_tenant, p_projection, p_version)
        on conflict do nothing;
    end if;
    select p.* into scope from gen_durable.projections p
    where p.tenant = p_tenant and p.projection = p_projection
    for no key update skip locked;
    if scope.tenant is null then
        verdict := 'locked';
    elsif scope.version <> p_version then
        verdict := case when scope.version < p_version then 'outdated' else 'newer' end;
    elsif scope.owner <> p_worker and scope.owned_until > statement_timestamp() and not p_force then
        verdict := 'owned';
    elsif scope.status = 'halted' and p_redrive is null then
        verdict := 'halted';
    elsif scope.retry_at > gen_durable.clock() and p_redrive is null then
        verdict := 'waiting';
        wait_seconds := extract(epoch from scope.retry_at - gen_durable.clock());
    elsif p_redrive is not null and (
        scope.position < p_redrive
        or exists (select from gen_durable.projection_runs r
                   where r.tenant = p_tenant and r.projection = p_projection and r.finished_at is null)
        or not exists (select from gen_durable.projection_failures f
                       where f.tenant = p_tenant and f.projection = p_projection and f.position = p_redrive
                         and f.state = 'parked' and f.redrive)
    ) then
        verdict := 'blocked';
    end if;
    return query select verdict, scope.position, scope.generation, scope.applied, scope.replaying_to, scope.attempts,
        scope.version, wait_seconds,
        null::bigint, null::timestamptz, null::text, null::int, null::text, null::text, null::bigint, null::text;
    if verdict = 'go' then
        return query
        select null::text, null::bigint, null::int, null::bigint, null::bigint, null::int, null::int, null::float8, e.*
        from gen_durable._events_after(p_tenant, coalesce(p_redrive - 1, scope.position), p_redrive, p_names, p_limit, p_bytes) e;
    end if;
end $$;

-- schema/functions/_check_rebuild_position.sql
-- Sets the position of a rebuild in place to the position of its scope. The rebuild is done when
-- the scope has reached again the position that it had before the rebuild.
--   called by: _project_close, _project_fail      index: projection_runs_open
--   locks: the run's row
create function gen_durable._check_rebuild_position(p_tenant text, p_projection text, p_new bigint) returns void
language sql
as $$
-- planner: pinned
    update gen_durable.projection_runs r
    set position = least(p_new, r.target), updated_at = gen_durable.clock(),
        status = case when p_new >= r.target then 'done' else r.status end,
        verdict = case when p_new >= r.target then 'rebuilt up to position ' || r.target end,
        finished_at = case when p_new >= r.target then gen_durable.clock() end
    where r.tenant = p_tenant and r.projection = p_projection and r.kind = 'rebuild' and r.status = 'running'
      and r.finished_at is null
$$;

-- schema/functions/_project_close.sql
-- Ends a batch of a projection: moves the scope from p_old, the position that `_project_open`
-- returned, to p_new. Returns false if the scope is not at p_old any more.
--   called by: store::projections::close
--   index: projections_pkey, projection_failures_pkey, projection_runs_open
--   locks: the scope's row, then its run's
create function gen_durable._project_close(
    p_tenant text, p_projection text, p_generation int, p_old bigint, p_new bigint, p_applied bigint, p_worker uuid,
    p_owned_seconds float8
) returns boolean
language plpgsql
as $$
-- planner: pinned
declare
    replayed_to bigint;
begin
    update gen_durable.projections p
    set position = p_new, applied = p_applied, status = 'running', attempts = 0, retry_at = null, last_error = null,
        owner = p_worker, owned_until = statement_timestamp() + make_interval(secs => p_owned_seconds),
        updated_at = gen_durable.clock()
    where p.tenant = p_tenant and p.projection = p_projection and p.position = p_old and p.generation = p_generation
    returning p.replaying_to into replayed_to;
    if not found then
        return false;
    end if;
    -- Resolves the failures of the events that this batch has applied. These may be parked events,
    -- if a rebuild has set the position of the scope back.
    update gen_durable.projection_failures f
    set state = 'resolved', resolved_at = gen_durable.clock(), redrive = false
    where f.tenant = p_tenant and f.projection = p_projection and f.position > p_old and f.position <= p_new
      and f.resolved_at is null;
    if replayed_to > p_old then
        perform gen_durable._check_rebuild_position(p_tenant, p_projection, p_new);
    end if;
    return true;
end $$;

-- schema/functions/_project_fail.sql
-- Records that a projection could not apply the event after p_old, in a new transaction after the
-- batch was rolled back. If the event is parked, the scope skips it: its position moves to the next
-- event.
--   called by: store::projections::fail
--   index: projections_pkey, projection_failures_pkey, projection_runs_open
--   locks: the scope's row, then the row of its run, for at most the lock timeout: another
--   transaction that holds the row processes the same event, and records its failure
create function gen_durable._project_fail(
    p_tenant text, p_projection text, p_old bigint, p_error text, p_state text, p_delay float8, p_version int
) returns boolean
language plpgsql
set lock_timeout = '1s'
as $$
-- planner: pinned
declare
    replayed_to bigint;
begin
    -- Inserts the row of the scope in `projections`, since the rollback of the batch may have
    -- removed it.
    insert into gen_durable.projections (tenant, projection, version) values (p_tenant, p_projection, p_version)
    on conflict do nothing;
    update gen_durable.projections p
    set status = case p_state when 'parked' then 'running' else p_state end,
        position = p.position + (p_state = 'parked')::int,
        attempts = case p_state when 'parked' then 0 else p.attempts + 1 end,
        retry_at = case p_state when 'retrying' then gen_durable.clock() + make_interval(secs => p_delay) end,
        last_error = case when p_state <> 'parked' then p_error end,
        updated_at = gen_durable.clock()
    where p.tenant = p_tenant and p.projection = p_projection and p.position = p_old
    returning p.replaying_to into replayed_to;
    if not found then
        return false;
    end if;
    if p_state = 'parked' and replayed_to > p_old then
        perform gen_durable._check_rebuild_position(p_tenant, p_projection, p_old + 1);
    end if;
    insert into gen_durable.projection_failures as f (tenant, projection, position, state, error)
    values (p_tenant, p_projection, p_old + 1, p_state, p_error)
    on conflict (tenant, projection, position) do update
    set attempts = f.attempts + 1, state = excluded.state, error = excluded.error, last_at = gen_durable.clock(),
        resolved_at = null, redrive = false;
    return true;
end $$;

-- schema/functions/_run_open.sql
-- Begins a batch of a run (a rebuild, a replay or a verification). With p_scope it first locks the
-- scope's row, and waits for the lock, so that no normal batch changes the scope during the batch
-- of the run.
--   called by: store::runs::open      index: projection_runs_pkey, projections_pkey, events_log
--   locks: the scope's row if p_scope; then the run's row, skipping it if it is locked
create function gen_durable._run_open(
    p_run bigint, p_version int, p_worker uuid, p_names text[], p_limit int, p_bytes bigint, p_to bigint, p_scope boolean
) returns table (
    verdict text, run_position bigint, run_generation int, applied bigint, scope_position bigint, generation int,
    scope_version int, scope_applied bigint, kind text, force boolean, target bigint,
    pos bigint, at timestamptz, name text, version int, payload text, headers text, instance_id bigint, step text
)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    run gen_durable.projection_runs;
    scope gen_durable.projections;
    verdict text := 'go';
begin
    if p_scope then
        perform from gen_durable.projections p
        where (p.tenant, p.projection) = (select r.tenant, r.projection from gen_durable.projection_runs r where r.id = p_run)
        for no key update;
    end if;
    select r.* into run from gen_durable.projection_runs r where r.id = p_run for no key update skip locked;
    if run.id is null then
        verdict := 'locked';
    elsif run.finished_at is not null then
        verdict := 'over';
    elsif run.owner <> p_worker and run.owned_until > statement_timestamp() then
        verdict := 'owned';
    else
        select p.* into scope from gen_durable.projections p where p.tenant = run.tenant and p.projection = run.projection;
        -- Two versions of the code must not write rows of one generation: a build skips a run of
        -- newer code, and ends a run of older code.
        if greatest(scope.version, run.version) > p_version then
            verdict := 'newer';
        elsif run.version < p_version or run.kind = 'replay' and scope.version < p_version then
            verdict := 'outdated';
        elsif run.status = 'pending' then
            update gen_durable.projection_runs r
            set status = 'running', started_at = gen_durable.clock(), owner = p_worker, version = p_version,
                target = coalesce(r.target, scope.position),
                generation = case when run.kind in ('shadow', 'verify') then 1 + greatest(scope.generation, (
                    select max(o.generation) from gen_durable.projection_runs o
                    where o.tenant = run.tenant and o.projection = run.projection)) else scope.generation end
            where r.id = p_run
            returning r.* into run;
        end if;
    end if;
    return query select verdict, run.position, run.generation, run.applied, scope.position, scope.generation, scope.version,
        scope.applied, run.kind, run.force, run.target,
        null::bigint, null::timestamptz, null::text, null::int, null::text, null::text, null::bigint, null::text;
    if verdict = 'go' then
        return query
        select null::text, null::bigint, null::int, null::bigint, null::bigint, null::int, null::int, null::bigint, null::text,
            null::boolean, null::bigint, e.*
        from gen_durable._events_after(run.tenant, run.position,
            least(p_to, case when run.kind = 'replay' then run.target else scope.position end), p_names, p_limit, p_bytes) e;
    end if;
end $$;

-- schema/functions/_run_swap.sql
-- Completes a shadow rebuild: from the commit on, readers see the rows that the run has written.
-- The caller has locked the scope's row. Returns false if the run is not at the position of the
-- scope. The failures of the run replace those of the scope: events that the run has skipped become
-- parked, and all other failures up to its position become resolved.
--   called by: store::runs::swap
--   index: projections_pkey, projection_runs_pkey, projection_failures_pkey,
--   projection_run_failures_pkey
--   locks: the rows of the scope and of the run, which this transaction has locked already; then
--   the rows of the failures
create function gen_durable._run_swap(p_run bigint, p_version int) returns boolean
language plpgsql
as $$
-- planner: pinned
declare
    run gen_durable.projection_runs;
    old_generation int;
begin
    select r.* into run from gen_durable.projection_runs r where r.id = p_run and r.status = 'running';
    select p.generation into old_generation from gen_durable.projections p
    where p.tenant = run.tenant and p.projection = run.projection;
    update gen_durable.projections p
    set generation = run.generation, version = p_version, applied = run.applied, status = 'running', attempts = 0,
        retry_at = null, last_error = null, replaying_to = 0, updated_at = gen_durable.clock()
    where p.tenant = run.tenant and p.projection = run.projection and p.position = run.position;
    if not found then
        return false;
    end if;
    update gen_durable.projection_runs r
    set status = 'done', finished_at = gen_durable.clock(), updated_at = gen_durable.clock(), retired = old_generation,
        target = run.position
    where r.id = p_run;
    update gen_durable.projection_failures f
    set state = 'resolved', resolved_at = gen_durable.clock(), redrive = false
    where f.tenant = run.tenant and f.projection = run.projection and f.position <= run.position and f.resolved_at is null
      and not exists (select from gen_durable.projection_run_failures o where o.run_id = p_run and o.position = f.position);
    insert into gen_durable.projection_failures as f (tenant, projection, position, state, error)
    select run.tenant, run.projection, o.position, 'parked', o.error
    from gen_durable.projection_run_failures o where o.run_id = p_run
    order by o.position
    on conflict (tenant, projection, position) do update set attempts = f.attempts + 1, state = 'parked',
        error = excluded.error, last_at = gen_durable.clock(), resolved_at = null;
    delete from gen_durable.projection_run_failures o where o.run_id = p_run;
    return true;
end $$;

-- schema/functions/_scopes_behind.sql
-- Returns scopes that have work and that no other worker owns: scopes that are due for a retry, and
-- scopes of the next page of tenants that have not read to the end of their log. Also returns
-- scopes with rows of an older version, if the projection rebuilds such rows by itself and no such
-- run is open or has failed. The last row has no tenant: it says whether a page was full. With
-- p_all (for tests) the page has all tenants, and log_walks is not read.
--   called by: store::projections::behind
--   index: projections_retry, event_heads_pkey, projections_pkey, events_log, projection_runs_open
--   locks: as _walk_page
create function gen_durable._scopes_behind(
    p_projections text[], p_versions int[], p_eager boolean[], p_worker uuid, p_page int, p_pause float8, p_idle float8,
    p_all boolean
) returns table (tenant text, projection text, more boolean)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
declare
    build record;
    page text[];
    more boolean := false;
begin
    return query
    with due as materialized (
        select p.tenant, p.projection, p.version, p.position, p.owner, p.owned_until from gen_durable.projections p
        where p.retry_at <= gen_durable.clock() and p.status <> 'halted'
        order by p.retry_at
    )
    select due.tenant, due.projection, null::boolean
    from due join unnest(p_projections, p_versions) as b(projection, version)
        on b.projection = due.projection and b.version = due.version
    where (due.owner is null or due.owner = p_worker or due.owned_until < statement_timestamp())
      and due.position < (
        select e.position from gen_durable.events e
        where e.tenant = due.tenant and e.position is not null order by e.position desc limit 1)
    limit p_page;
    for build in select * from unnest(p_projections, p_versions, p_eager) as b(projection, version, eager) loop
        page := case
            when p_all then null::text || array(select h.tenant from gen_durable.event_heads h order by h.tenant)
            else gen_durable._walk_page('behind', build.projection, build.version, p_page, p_pause, p_idle) end;
        continue when page is null;
        more := more or cardinality(page) > p_page;
        return query
        select t.tenant, build.projection, null::boolean
        from unnest(page[2:]) as t(tenant)
        left join gen_durable.projections p on p.tenant = t.tenant and p.projection = build.projection
        where (p.owner is null or p.owner = p_worker or p.owned_until < statement_timestamp())
          and case
            when p.version < build.version then build.eager and not exists (
                select from gen_durable.projection_runs r
                where r.tenant = p.tenant and r.projection = p.projection
                  and (r.finished_at is null or r.status = 'failed' and r.requested_by = 'version ' || build.version))
            when p.version > build.version or p.status = 'halted' or p.retry_at > gen_durable.clock() then false
            else coalesce(p.position, 0) < coalesce((
                select e.position from gen_durable.events e
                where e.tenant = t.tenant and e.position is not null order by e.position desc limit 1), 0)
          end;
    end loop;
    return query select null::text, null::text, more;
end $$;

-- schema/functions/_add_counts.sql
-- Adds two histograms class by class. The sum is one expression, so that Postgres inlines it.
--   called by: _add_rollups
--   index: none
--   locks: nothing
create function gen_durable._add_counts(p_left bigint[], p_right bigint[]) returns bigint[]
    language sql immutable parallel safe
    as 'select array[
        p_left[1] + p_right[1], p_left[2] + p_right[2], p_left[3] + p_right[3], p_left[4] + p_right[4],
        p_left[5] + p_right[5], p_left[6] + p_right[6], p_left[7] + p_right[7], p_left[8] + p_right[8],
        p_left[9] + p_right[9], p_left[10] + p_right[10], p_left[11] + p_right[11], p_left[12] + p_right[12],
        p_left[13] + p_right[13], p_left[14] + p_right[14], p_left[15] + p_right[15], p_left[16] + p_right[16],
        p_left[17] + p_right[17], p_left[18] + p_right[18], p_left[19] + p_right[19], p_left[20] + p_right[20],
        p_left[21] + p_right[21]]';

-- schema/functions/_add_rollups.sql
-- Adds a batch of counts of a worker to the rollups. Returns false, and adds nothing, if another
-- transaction holds the rollup lock: the worker sends the batch again later.
--   called by: store::rollup::add
--   index: rollup_lock_pkey, rollup_writers_pkey, rollups_pkey
--   locks: the rollup lock, skipped if another transaction holds it; then the worker's row in
--   rollup_writers, and rows of rollups. Every transaction that writes these two tables holds the
--   rollup lock, so none of them waits for another one.
-- A worker numbers its batches. If the number of a batch is not above the last one that was added,
-- the rollups have it already: the worker sends a batch again if the reply to it was lost (R-160).
-- Element n of the arrays is one pair of a machine and a queue; the histograms of all pairs follow
-- each other. A bucket has at most 100 pairs; further pairs share one row without names. The first
-- batch of a bucket deletes rows past their retention.
create function gen_durable._add_rollups(
    p_worker uuid, p_batch bigint, p_age_seconds float8, p_machines text[], p_queues text[],
    p_steps bigint[], p_failures bigint[], p_done bigint[], p_failed bigint[],
    p_queue_time bigint[], p_duration bigint[]
) returns boolean
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    pairs_max constant int := 100;
    classes constant int := 21;
    added constant timestamptz := gen_durable.clock();
    kept record;
    start timestamptz;
    known int;
    named boolean;
begin
    perform from gen_durable.rollup_lock where one for update skip locked;
    if not found then
        return false;
    end if;
    insert into gen_durable.rollup_writers as w (worker_id, batch, added_at) values (p_worker, p_batch, added)
    on conflict (worker_id) do update set batch = excluded.batch, added_at = excluded.added_at
    where w.batch < excluded.batch;
    if not found then
        return true;
    end if;
    for kept in select * from (values (60, interval '3 hours'), (600, interval '2 days'), (3600, interval '8 days')) as k(seconds, age)
    loop
        start := date_bin(make_interval(secs => kept.seconds), added - make_interval(secs => p_age_seconds), 'epoch');
        select count(*) into known from gen_durable.rollups r where r.seconds = kept.seconds and r.bucket = start;
        if known = 0 then
            delete from gen_durable.rollups r
            where r.seconds = kept.seconds and (r.bucket, r.machine, r.queue) in (
                select o.bucket, o.machine, o.queue from gen_durable.rollups o
                where o.seconds = kept.seconds and o.bucket < added - kept.age
                order by o.bucket limit 500);
            delete from gen_durable.rollup_writers w
            where kept.seconds = 3600 and w.added_at < added - interval '1 day';
        end if;
        for n in 1 .. cardinality(p_machines) loop
            named := known < pairs_max or exists (
                select from gen_durable.rollups r
                where r.seconds = kept.seconds and r.bucket = start and r.machine = p_machines[n] and r.queue = p_queues[n]);
            insert into gen_durable.rollups as r (seconds, bucket, machine, queue, steps, failures, done, failed, queue_time, duration)
            values (kept.seconds, start,
                case when named then p_machines[n] else '' end, case when named then p_queues[n] else '' end,
                p_steps[n], p_failures[n], p_done[n], p_failed[n],
                p_queue_time[(n - 1) * classes + 1 : n * classes], p_duration[(n - 1) * classes + 1 : n * classes])
            on conflict (seconds, bucket, machine, queue) do update
            set steps = r.steps + excluded.steps, failures = r.failures + excluded.failures,
                done = r.done + excluded.done, failed = r.failed + excluded.failed,
                queue_time = gen_durable._add_counts(r.queue_time, excluded.queue_time),
                duration = gen_durable._add_counts(r.duration, excluded.duration)
            returning r.xmax = 0 into named;
            known := known + named::int;
        end loop;
    end loop;
    return true;
end $$;

-- schema/planner.sql
-- Pins the plans of every function that has a marker as the first line of its body. The markers
-- are:
--   `-- planner: pinned` allows only index scans. A statement that is planned while its table is
--   empty would keep a sequential scan after the table has grown. With these settings the statement
--   can only use an index, and the header of the function names the index. `nested loops` also
--   forbids hash and merge joins, which read a whole table or a whole index. `hash joins` allows
--   hash joins, for a statement that joins only its own arguments. `generic` makes
--   Postgres use a generic plan from the first call of a session, and not plan the first calls for
--   their values.
--
-- This file lists the settings once, so that no function repeats them. The marker is a part of the
-- function's source and is stored in the catalogue, so this file can be run in psql after any
-- change: `create or replace function` drops the settings of a function, and this file restores
-- them. A function that only pinned functions call has no marker: Postgres plans its statements
-- under the settings of the caller.
do $planner$
declare
    pinned record;
begin
    for pinned in
        select p.oid::regprocedure as name, substring(p.prosrc from '^\s*-- planner: (pinned[^\n]*)') as marker
        from pg_proc p
        where p.pronamespace = (select c.relnamespace from pg_class c where c.oid = 'gen_durable.instances'::regclass)
          and p.prosrc ~ '^\s*-- planner: pinned'
    loop
        execute format('alter function %s set search_path = gen_durable, pg_temp', pinned.name);
        execute format('alter function %s set enable_seqscan = off set enable_bitmapscan = off set jit = off', pinned.name);
        if pinned.marker ~ 'nested loops' then
            execute format('alter function %s set enable_hashjoin = off set enable_mergejoin = off', pinned.name);
        end if;
        if pinned.marker ~ 'hash joins' then
            execute format('alter function %s set enable_hashjoin = on', pinned.name);
        end if;
        if pinned.marker ~ 'generic' then
            execute format('alter function %s set plan_cache_mode = force_generic_plan', pinned.name);
        end if;
    end loop;
end $planner$;
