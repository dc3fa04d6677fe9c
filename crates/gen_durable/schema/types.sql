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
