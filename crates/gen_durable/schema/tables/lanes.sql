-- Numbers the rounds of placement. A lane position is (round << 20) + the rank of the instance in
-- the round.
create sequence gen_durable.placement_rounds cache 1;

-- One row per lane. The row is the lock of the lane: every transaction that assigns or frees a lane
-- position holds it. No instance in the lane has a position at or below `floor`, so scans of the
-- lane begin after `floor`.
create table gen_durable.lanes (
    tenant text not null,
    key    text not null,
    floor  bigint not null default 0,
    -- The worker that runs the instances of this lane one after the other, without claiming each: a
    -- head that is `queued` runs in that worker. A transaction that takes such a head from the
    -- worker raises the head's claim_epoch. The column has no meaning while the head is not
    -- `queued`.
    worker_id uuid,
    primary key (tenant, key)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);
-- The reaper reads the lanes that an expired worker ran.
create index lanes_worker on gen_durable.lanes (worker_id, tenant, key)
    where worker_id is not null;
