-- How far the collector has read each range (queue, status) of `instances_settled`. All engines
-- share these rows: instances that are kept beyond their retention (children of a parent that may
-- still read them) are read once per pass, and not by each engine each minute.
create table gen_durable.collect_cursors (
    queue         text not null,
    status        gen_durable.durable_status not null,
    -- Instances that settled before this were examined.
    at            timestamptz not null default '-infinity',
    -- How many that settled at that very time were examined and kept.
    kept_at       bigint not null default 0,
    examined      bigint not null default 0,         -- in this pass
    pass_began_at timestamptz not null default gen_durable.clock(),
    primary key (queue, status)
) with (fillfactor = 50);
