-- called by: store::doctor::snapshots     index: none
-- locks: nothing
-- Lists old transactions, prepared transactions and replication slots. Their snapshots keep vacuum
-- from removing dead rows.
select 'transaction' as kind, a.pid, coalesce(a.usename, '') as user, coalesce(a.application_name, '') as name, coalesce(a.state, '') as state,
    extract(epoch from statement_timestamp() - a.xact_start)::float8 as age_seconds, null::bigint as age_transactions,
    left(coalesce(a.query, ''), 200) as query
from pg_stat_activity a
where a.backend_xmin is not null and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
  and a.xact_start < statement_timestamp() - make_interval(secs => $1)
union all
select 'prepared', 0, p.owner, p.gid, 'prepared', extract(epoch from statement_timestamp() - p.prepared)::float8, null, ''
from pg_prepared_xacts p
where p.prepared < statement_timestamp() - make_interval(secs => $1)
union all
select 'slot', coalesce(r.active_pid, 0), '', r.slot_name, case when r.active then 'active' else 'inactive' end,
    null, age(coalesce(r.xmin, r.catalog_xmin))::bigint, ''
from pg_replication_slots r
where r.xmin is not null or r.catalog_xmin is not null
order by 6 desc nulls last, 7 desc
limit 20
