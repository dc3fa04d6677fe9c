-- The watermark of placement: up to which arrival number the instances have been placed, see
-- `_place_new`. The row with the largest n is valid. A change inserts a row and deletes the
-- previous row, and readers read the index backwards from its end. An update of one row would leave
-- a dead version each time, and each pick would read all dead versions while an open transaction
-- prevents the vacuum.
create table gen_durable.placement_watermarks (
    n            bigint generated always as identity primary key,
    -- Instances with arrival numbers up to `placed_to` are placed, except instances of the
    -- transactions in `open_xids`.
    placed_to    bigint not null default 0,
    -- The last arrival number that any transaction had drawn just before a placement wrote this
    -- row.
    drawn        bigint not null default 0,
    -- A transaction id: every transaction that drew arrival numbers up to `drawn` has a smaller id.
    drawn_before xid8 not null default '0',
    -- Transactions that were open when `placed_to` rose above arrival numbers that they may have
    -- drawn.
    open_xids    xid8[] not null default '{}',
    -- For each transaction in `open_xids`: its arrival numbers are larger than this number.
    open_since   bigint[] not null default '{}',
    -- When `_repair` next reads all arrival numbers, from the first one.
    sweep_due_at timestamptz not null default '-infinity'
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);
insert into gen_durable.placement_watermarks default values;
