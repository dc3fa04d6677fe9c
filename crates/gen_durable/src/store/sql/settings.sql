-- called by: store::doctor::settings     index: none
-- locks: nothing
select s.name, s.setting from pg_settings s
where s.name in ('fsync', 'synchronous_commit', 'full_page_writes', 'autovacuum', 'track_counts', 'server_version_num',
    'max_connections', 'default_transaction_isolation', 'idle_in_transaction_session_timeout')
union all
select 'client_backends', (select count(*)::text from pg_stat_activity a where a.backend_type = 'client backend')
union all
select 'in_recovery', pg_is_in_recovery()::text
union all
select 'now', statement_timestamp()::text
