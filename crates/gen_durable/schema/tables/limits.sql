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
