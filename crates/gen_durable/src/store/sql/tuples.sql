-- called by: store::doctor::tables     index: none
-- locks: nothing
select t.relname, t.n_live_tup, t.n_dead_tup, pg_total_relation_size(t.relid) as bytes,
    greatest(t.last_vacuum, t.last_autovacuum) as last_vacuum
from pg_stat_user_tables t
where t.schemaname = (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
                      where c.oid = 'gen_durable.instances'::regclass)
order by t.n_dead_tup desc
