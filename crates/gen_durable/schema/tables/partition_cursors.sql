-- Partition cursors: no instance that waits for this partition is below (priority, at, id), so
-- scans begin there. Without a row they begin at the first. `_promote_successors` raises a cursor after one
-- ended step in twenty, and `_assign_partition` lowers it for an instance that arrives below it. Both hold the
-- row of the partition holder. The holder itself is never below the cursor: it waited when the
-- cursor was raised last, and waits behind all others again when it ends a step.
create table gen_durable.partition_cursors (
    tenant   text not null,
    key      text not null,
    priority smallint not null,
    at       timestamptz not null,
    id       bigint not null,
    primary key (tenant, key)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);
