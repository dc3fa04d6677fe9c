-- Settings of a queue. A queue without a row is not paused.
create table gen_durable.queues (
    name         text primary key,
    paused_at    timestamptz,
    paused_by    text,
    -- How many seconds settled instances of this queue are kept. An engine that declares a
    -- retention writes it, and the upkeep of all engines uses it. Null: the settings of the engine
    -- that deletes the instances apply. Infinity: upkeep never deletes the instances.
    retention        float8,                         -- of done instances
    failed_retention float8                          -- of failed and cancelled instances
);
