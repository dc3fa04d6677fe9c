-- called by: store::pulse::estimate     index: none: it reads the statistics of the catalog
-- locks: nothing
select gen_durable.clock() as now, greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0) as instances,
    pg_total_relation_size(c.oid) as bytes,
    (select count(*) from gen_durable.workers w where w.lease_expires_at > statement_timestamp()) as workers
from pg_class c
where c.oid = 'gen_durable.instances'::regclass
