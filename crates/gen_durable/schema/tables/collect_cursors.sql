-- Cursors of the collector, which deletes settled instances: how far it has read each range (queue,
-- status) of the index `instances_settled`. All workers share these rows, so that they read an
-- instance that is kept beyond its retention (a child that its parent may still read) once per
-- pass, and not in each worker each minute.
create table gen_durable.collect_cursors (
    queue         text not null,
    status        gen_durable.durable_status not null,
    -- Upkeep has examined all instances of the range (queue, status) that settled before this time.
    at            timestamptz not null default '-infinity',
    -- How many instances that settled exactly at `at` upkeep has examined and kept.
    kept_at       bigint not null default 0,
    examined      bigint not null default 0,         -- instances examined in this pass
    pass_began_at timestamptz not null default gen_durable.clock(),
    primary key (queue, status)
) with (fillfactor = 50);
