-- 0001: instances, workers, queues. Runs as it stands in psql (another schema is one replacement of the name).
-- Frozen once released.

create schema gen_durable;

-- The one clock. Production reads the statement's own time: it is STABLE, so it stays an index condition.
-- A test schema replaces the body, and with it moves every due time at once. Leases do not use it.
create function gen_durable.clock() returns timestamptz
    language sql stable parallel safe
    as 'select statement_timestamp()';

-- Returns when something is due: at a date, or after a delay in seconds. A date in the past is now, so that no row appears behind
-- where the pickers have already looked. A delay is at most a hundred years, and a date at most the last that a client can read
-- (Rust's end with the year 9999): one row beyond it would fail every answer that holds it.
--   called by: enqueue_all, store::enqueue      index: none      locks: nothing
create function gen_durable.due(p_at timestamptz, p_delay float8) returns timestamptz
    language sql stable parallel safe
    as $$
        select least(greatest(coalesce(p_at, gen_durable.clock() + make_interval(secs => least(coalesce(p_delay, 0), 3162240000))),
            gen_durable.clock()), timestamptz '9999-12-30 22:00:00+00')
    $$;

-- A number in the stead of a lane's name.
create function gen_durable.lane_hash(p_tenant text, p_key text) returns bigint
    language sql immutable parallel safe
    as 'select hashtextextended(p_key, hashtextextended(p_tenant, 0))';

create table gen_durable.migrations (
    version       int primary key,
    name          text not null,
    -- The oldest schema version that a binary may have been built for and still work with this schema.
    oldest_served int not null,
    installed_at  timestamptz not null default statement_timestamp()
);

-- The installation, by a random name that idempotency keys begin with: ids begin at 1 in every schema. A restored database keeps it;
-- a copy that is to be another installation gets a new one by an update.
create table gen_durable.installation (
    one boolean primary key default true check (one),
    id  text not null default left(replace(gen_random_uuid()::text, '-', ''), 16)
);
insert into gen_durable.installation default values;

create type gen_durable.durable_status as enum (
    'runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'queued', 'stuck',
    'done', 'failed', 'cancelled'
);

-- Returns the statuses in which an instance holds its key.
--   called by: enqueue_all      index: none      locks: nothing
create function gen_durable.key_scope(p_scope text) returns gen_durable.durable_status[]
language plpgsql immutable
as $$
begin
    case coalesce(p_scope, 'live')
        when 'live' then return array['runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'queued', 'stuck']::gen_durable.durable_status[];
        when 'ever' then return enum_range(null::gen_durable.durable_status);
        when 'none' then return '{}'::gen_durable.durable_status[];
        else raise exception 'unknown scope %: a key is held while its instance is live, ever, or none', p_scope
            using errcode = 'invalid_parameter_value';
    end case;
end $$;

-- Names have a length. An enqueue casts to these, and the columns are plain text: a check of the table is read and prepared by every
-- update, whatever it writes.
create domain gen_durable.name as text constraint name_has_1_to_200_bytes check (octet_length(value) between 1 and 200);
create domain gen_durable.queue_name as text constraint queue_has_1_to_63_bytes check (octet_length(value) between 1 and 63);
create domain gen_durable.tenant_name as text constraint tenant_has_at_most_200_bytes check (octet_length(value) <= 200);
create domain gen_durable.key_name as text constraint key_has_1_to_512_bytes check (octet_length(value) between 1 and 512);

-- Numbers of arrival: one at a time, so that one producer's come in the order of its enqueues.
create sequence gen_durable.arrivals cache 1;
-- Numbers of claims: one claim after another of an instance, a lane or a partition key has a larger one, whichever process makes it.
create sequence gen_durable.fencing_tokens cache 1;
-- One number for each time that places in lanes are given out.
create sequence gen_durable.rounds cache 1;

-- An instance of a machine is a row. What is always there and has a fixed width comes first, then what is in an index: an update
-- looks at every indexed column of the old and the new row, and walks to it over all that stand before.
create table gen_durable.instances (
    id               bigint generated always as identity primary key,
    claim_epoch      bigint not null default 0,      -- the fence: + 1 whenever it passes to another: on every claim by a pick or a turn, and on every way out of executing or queued
    step_seq         bigint not null default 0,      -- + 1 by every commit of an owner
    visit            bigint not null default 0,      -- the step_seq at which the current step was entered: stable over its retries
    eligible_at      timestamptz not null default gen_durable.clock(),
    inserted_at      timestamptz not null default gen_durable.clock(),
    updated_at       timestamptz not null default gen_durable.clock(),
    fsm_version      int not null default 1,
    attempt          int not null default 0,         -- runs of the current step that led nowhere: failures, retries of its own, deaths
    failures         int not null default 0,         -- those of them that failed: Policy::attempts counts these
    join_generation  int not null default 0,         -- + 1 by every spawn: a late child of an older one counts no more
    children_pending int not null default 0,
    status           gen_durable.durable_status not null default 'runnable',
    priority         smallint not null default 0,    -- lower first
    crash_count      smallint not null default 0,    -- deaths of a worker that held it, since its last commit: from the second on, only those while its step ran
    held_back        boolean not null default false, -- runnable, and it is another's turn under its partition key
    in_lane          boolean not null default false, -- has a place in its lane: waits for it, or has the lane
    lane_blocks      boolean not null default false, -- if it fails for good, its lane stands still behind it
    join_any         boolean not null default false, -- the first child that settles releases the join
    repeats          boolean not null default false, -- timers repeat beside its wait: most have none, and pay one comparison when it ends
    queue            text not null default 'default',
    tenant           text not null default '',
    fsm              text not null,
    locked_by        uuid,                           -- the worker: for people and the reaper, never a fence. See `_cancel_live`
    finished_at      timestamptz,
    lane_hash        bigint generated always as (gen_durable.lane_hash(tenant, lane_key)) stored, -- of its lane: a short key
    lane_position    bigint,                         -- its place in its lane, once it was given one
    arrival          bigint,                         -- its lane or partition key must be looked at: see `place`
    partition_key    text,
    lane_key         text,
    parent_id        bigint,                         -- no foreign key: a parent's end must not rewrite its children
    parent_generation int,                           -- which spawn of its parent it counts for
    deadline_at      timestamptz,                    -- when a wait or a join gives up…
    correlation_guard text generated always as (
        case when correlation_key is not null and status = any (correlation_scope) then correlation_key end) stored,
    lease_expires_at timestamptz,                    -- set at the claim, for people: the lease itself is the worker's
    step             text not null,
    state            jsonb not null,
    data             jsonb,                          -- what only the current step needs
    result           jsonb,
    last_error       text,
    traceparent      text,                           -- carried from the enqueue to every step
    awaits           text[],                         -- the signals that its step waits for, or was woken for
    deadline_step    text,                           -- …and where it goes then
    deadline_data    jsonb,
    correlation_key   text,                          -- its business key: unique while its status is in the scope, and an address
    correlation_scope gen_durable.durable_status[],
    begun_epoch      bigint,                         -- the claim_epoch under which its step began; recorded only where crash_count > 0
    constraint instances_executing_has_an_owner check (
        case status when 'executing' then locked_by is not null when 'cancelled' then true else locked_by is null end),
    constraint instances_terminal_has_an_end check ((status in ('done', 'failed', 'cancelled')) = (finished_at is not null)),
    constraint instances_counts_are_not_negative check (
        attempt >= 0 and failures >= 0 and crash_count >= 0 and step_seq >= visit and children_pending >= 0),
    constraint instances_queued_is_in_a_lane check (
        (status <> 'queued' or lane_key is not null) and (not in_lane or lane_position is not null)),
    constraint instances_held_back_is_runnable check (
        not held_back or (status = 'runnable' and partition_key is not null))
) with (
    -- Room for the next version of a row on its own page: a run-ahead commit stays off every index.
    fillfactor = 80,
    -- Vacuum by amount of work, not by share of the table: a table of finished rows must not wait for its fifth.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 1
);

-- The picker's range: one (queue, priority), by due time. A row whose process died twice is not in it.
create index instances_pick on gen_durable.instances (queue, priority, eligible_at, id)
    where status = 'runnable' and crash_count < 2 and not held_back;
-- Rows that two processes died with run one at a time in a process.
create index instances_suspects on gen_durable.instances (queue, eligible_at, id)
    where status = 'runnable' and crash_count >= 2 and not held_back;
-- The reaper's: the instances that a worker executes, and the cancelled ones whose step it has not reported as ended.
create index instances_held on gen_durable.instances (locked_by)
    where status = 'executing' or locked_by is not null;
-- The collector's: retention differs by queue and by status, and each such range is in the order of settling.
create index instances_finished on gen_durable.instances (queue, status, finished_at)
    where finished_at is not null;

-- A lane, in order: what waits in it and what has it. What has left the lane is not in here.
-- By the hash of tenant and key: comparing numbers is cheaper than comparing names. Whoever looks compares the names of what it found.
create unique index instances_lane on gen_durable.instances (lane_hash, lane_position)
    where in_lane;
-- Lanes that stand still: their head failed for good and was to keep its place. One entry a lane, and none most of the time.
create index instances_blocked on gen_durable.instances (tenant, lane_key)
    where in_lane and status = 'failed';
-- The holder of a partition key: at most one, whatever any code believes. A cancelled instance holds it while its step still runs.
create unique index instances_turn on gen_durable.instances (tenant, partition_key)
    where partition_key is not null and not held_back and (status in ('runnable', 'executing') or locked_by is not null);
-- Who waits for a turn, in the order of the picker.
create index instances_waiting on gen_durable.instances (tenant, partition_key, priority, eligible_at, id)
    where held_back;
-- Whose lane or partition key must be looked at, in the order of arrival.
create index instances_arrivals on gen_durable.instances (arrival)
    where arrival is not null;

-- One index, two jobs: a key is unique among those that occupy it, and it is found by it. Keys carry their tenant.
create unique index instances_key on gen_durable.instances (tenant, correlation_guard)
    where correlation_guard is not null;
-- A parent's children, by spawn.
create index instances_children on gen_durable.instances (parent_id, parent_generation, id)
    where parent_id is not null;
-- Waits and joins that give up at a time.
create index instances_deadlines on gen_durable.instances (deadline_at, id)
    where deadline_at is not null;

-- What waits, has failed or was set aside, by id: for people who look for it among a million that are done. It names no column
-- that a run-ahead commit writes.
create index instances_aside on gen_durable.instances (status, id)
    where status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled');

-- A process that runs steps. Its lease is the lease of all that it holds.
create table gen_durable.workers (
    id               uuid primary key,
    lease_expires_at timestamptz not null,
    started_at       timestamptz not null default statement_timestamp(), -- since when its lease has been good without a gap
    renewed_at       timestamptz not null default statement_timestamp(),
    host             text not null,
    pid              int not null,
    queues           text[] not null,
    machines         text[] not null,                -- 'name/version', all that it can run
    steps            text[] not null default '{}'    -- 'name/version/step', all that it knows: see `_knows_step`
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

-- What an operator decided about a queue. A queue without a row is open.
create table gen_durable.queues (
    name         text primary key,
    paused_at    timestamptz,
    paused_by    text,
    -- How long settled instances of this queue are kept, in seconds: set by an engine that declares it, and obeyed by the collector
    -- of every engine. Null: as that engine's settings say. Infinity: for ever.
    retention        float8,                         -- done
    failed_retention float8                          -- failed and cancelled
);

-- How far the collector has read each range of `instances_finished`. All engines share these rows, so that what must be kept beyond
-- its retention (children of a parent that may still read them) is read once a pass, and not by each engine each minute.
create table gen_durable.collect_cursors (
    queue         text not null,
    status        gen_durable.durable_status not null,
    at            timestamptz not null default '-infinity', -- instances that settled before this were examined
    kept_at       bigint not null default 0,         -- and so many that settled at that very time, and were kept
    examined      bigint not null default 0,         -- in this pass
    pass_began_at timestamptz not null default gen_durable.clock(),
    primary key (queue, status)
) with (fillfactor = 50);

-- A lane: its row is its lock, and all that gives or takes a place in it holds that. The floor is a place below which
-- nothing stands any more: where to begin to look.
create table gen_durable.lanes (
    tenant text not null,
    key    text not null,
    floor  bigint not null default 0,
    -- The worker in which one runs after the other without a claim of its own: while the head is `queued`, it runs there.
    -- Whoever takes such a head from it raises its claim_epoch. It says nothing while the head is anything but `queued`.
    led_by uuid,
    primary key (tenant, key)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);
-- The reaper's: the lanes that a dead worker led.
create index lanes_led on gen_durable.lanes (led_by, tenant, key)
    where led_by is not null;

-- Where to begin to look for who waits under a partition key: nothing that waits stands below. Without a row: at the beginning.
-- `hand_over` raises it now and then, `deal` lowers it for one that comes late; both hold the row that has the turn. That one
-- is never below: it was among those that waited when the floor was last raised, and goes to the back when it ends a step.
create table gen_durable.turns (
    tenant   text not null,
    key      text not null,
    priority smallint not null,
    at       timestamptz not null,
    id       bigint not null,
    primary key (tenant, key)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);

-- Whoever gives out places and turns holds this row: one at a time, for the length of a statement.
create table gen_durable.placer (one boolean primary key default true check (one));
insert into gen_durable.placer default values;

-- How far the instances that drew a number of arrival have been placed: see `_place_new`. The row with the largest n is valid. It is
-- inserted and the one before it is deleted, and it is read from the end of its key: a row that is updated would leave a dead version
-- for each update, and each pick would read them all while a transaction holds back the vacuum.
create table gen_durable.placement_watermarks (
    n            bigint generated always as identity primary key,
    placed_to    bigint not null default 0,          -- numbers up to this one are placed, but for those of `open_xids`
    drawn        bigint not null default 0,          -- how far numbers had been drawn when this row was about to be written…
    drawn_before xid8 not null default '0',          -- …by transactions below this one
    open_xids    xid8[] not null default '{}',       -- transactions that were open when placed_to passed numbers they may have drawn
    open_since   bigint[] not null default '{}',     -- for each of them: its numbers are larger than this one
    sweep_due_at timestamptz not null default '-infinity' -- when `repair` reads all numbers again
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);
insert into gen_durable.placement_watermarks default values;
