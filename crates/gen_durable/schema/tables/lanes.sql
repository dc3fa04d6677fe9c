-- Numbers the rounds of placement. A lane position is (round << 20) + the rank of the instance in
-- the round.
create sequence gen_durable.placement_rounds cache 1;

-- One row per lane. The row is the lock of the lane: every transaction that assigns a position in
-- the lane, or settles its last instance, holds it. No instance in the lane has a position at or
-- below `floor`, so scans of the lane begin after `floor`.
create table gen_durable.lanes (
    tenant text not null,
    key    text not null,
    floor  bigint not null default 0,
    primary key (tenant, key)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);
