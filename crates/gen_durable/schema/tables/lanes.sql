-- Numbers the placements: a lane position is (round << 20) + place in the round.
create sequence gen_durable.placement_rounds cache 1;

-- A lane. Its row is the lock of the lane: every transaction that assigns or frees a position holds
-- it. No instance of the lane is at or below the floor: scans begin there.
create table gen_durable.lanes (
    tenant text not null,
    key    text not null,
    floor  bigint not null default 0,
    -- The worker that runs the instances of this lane one after the other, without claiming each: a
    -- head that is `queued` runs in that worker. A transaction that takes such a head away raises
    -- its claim_epoch. The column has no meaning while the head is not `queued`.
    worker_id uuid,
    primary key (tenant, key)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);
-- The reaper reads the lanes that an expired worker ran.
create index lanes_worker on gen_durable.lanes (worker_id, tenant, key)
    where worker_id is not null;
