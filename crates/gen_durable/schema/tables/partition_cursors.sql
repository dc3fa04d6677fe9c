-- Partition cursors: no instance that waits for this partition is before (priority, at, id), so
-- scans begin there. Without a row, scans begin at the first waiting instance.
-- `_promote_successors` raises a cursor after one ended step in twenty, and `_assign_partition`
-- lowers the cursor for an instance that arrives before it. Both hold the lock of the partition
-- holder's row. The holder is never before the cursor: it was a waiting instance when the cursor
-- was raised last, and when it ends a step it waits behind all others again.
create table gen_durable.partition_cursors (
    tenant   text not null,
    key      text not null,
    priority smallint not null,
    at       timestamptz not null,
    id       bigint not null,
    primary key (tenant, key)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);
