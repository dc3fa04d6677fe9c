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
