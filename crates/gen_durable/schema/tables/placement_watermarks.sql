-- How far instances that drew an arrival number have been placed: see `_place_new`. The row with
-- the largest n is valid. A change inserts a row and deletes the one before, and readers begin at
-- the end of the key: an updated row would leave a dead version for each update, and each pick
-- would read them all while an open transaction prevents the vacuum.
create table gen_durable.placement_watermarks (
    n            bigint generated always as identity primary key,
    -- Numbers up to this one are placed, except those of `open_xids`.
    placed_to    bigint not null default 0,
    -- How far numbers had been drawn just before this row was written...
    drawn        bigint not null default 0,
    drawn_before xid8 not null default '0', -- ...by transactions with a smaller id than this
    -- Transactions that were open when placed_to passed numbers that they may have drawn.
    open_xids    xid8[] not null default '{}',
    -- For each of them: its numbers are larger than this.
    open_since   bigint[] not null default '{}',
    sweep_due_at timestamptz not null default '-infinity' -- when `_repair` reads all numbers again
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);
insert into gen_durable.placement_watermarks default values;
