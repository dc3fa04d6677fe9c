-- The snapshot of the last scan for events of a tenant that have no position. That scan read every
-- event that was committed before the snapshot. The next scan reads only events of transactions
-- that are newer than the snapshot or were open in it, and skips dead index entries of events that
-- have got their position since. The row with the largest n is valid. The row only saves work: a
-- scan from the beginning finds all events.
create table gen_durable.event_scans (
    n      bigint generated always as identity,
    tenant text not null,
    looked pg_snapshot not null,
    primary key (tenant, n)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
