-- called by: store::inspect::server, once at the start of an engine     index: none
-- locks: nothing
select current_setting('max_connections')::int,
    (select count(*)::int from pg_stat_activity where backend_type = 'client backend'),
    current_setting('synchronous_commit'), current_setting('fsync'),
    pg_is_in_recovery() or current_setting('transaction_read_only')::bool,
    gen_random_uuid()::text, current_setting('default_transaction_isolation'),
    (select i.id from gen_durable.installation i)
