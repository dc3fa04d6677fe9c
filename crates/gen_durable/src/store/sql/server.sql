-- called by: store::inspect::server, once at the start of an engine     index: none
-- locks: nothing
select current_setting('max_connections')::int as max_connections,
    (select count(*)::int from pg_stat_activity where backend_type = 'client backend') as used_connections,
    current_setting('synchronous_commit') as synchronous_commit, current_setting('fsync') as fsync,
    pg_is_in_recovery() or current_setting('transaction_read_only')::bool as read_only,
    gen_random_uuid()::text as random_id, current_setting('default_transaction_isolation') as isolation,
    (select i.id from gen_durable.installation i) as installation
