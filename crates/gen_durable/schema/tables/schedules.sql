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
