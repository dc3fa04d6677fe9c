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
