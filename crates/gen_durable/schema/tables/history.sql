-- The history of instances: one row per change. Its order is (step_seq, claim_epoch): every
-- recorded change raises one of them, so no two rows have the same. No foreign key: it would read
-- the instance for each row of every commit; a trigger on `instances` deletes the history of a
-- deleted instance.
create table gen_durable.history (
    instance_id  bigint not null,
    step_seq     bigint not null,                    -- of the instance, after the change
    claim_epoch  bigint not null,                    -- of the instance, after the change
    at           timestamptz not null,
    woken_at     timestamptz, -- when a wait, a join or a stuck instance was released...
    took_seconds real,                               -- how long the step ran; null: no step ran
    attempt      int not null,                       -- earlier runs of the step without progress
    status       gen_durable.durable_status not null,
    -- The result of a step: next, sleep, wait, spawn, retry, failure, done, stop, outage, stuck. A
    -- change from outside: deadline, reap, cancel, operator_retry.
    outcome      text not null,
    from_step    text not null,
    to_step      text not null,
    error        text,
    cause        text, -- ...and by what: 'signal paid', 'children', 'another build'
    worker       text, -- host/pid of the worker that ran the step, or crashed in it
    primary key (instance_id, step_seq, claim_epoch)
) with (
    -- The row of a wait is written again when the wait ends: on its own page, without an index
    -- write.
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.1
);
