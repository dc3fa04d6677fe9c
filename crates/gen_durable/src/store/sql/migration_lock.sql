-- called by: store::migrate::under_lock     index: none
-- locks: an advisory lock on the name of this schema, until the transaction ends
select pg_advisory_xact_lock(hashtextextended('gen_durable migration of ' || $1, 0))
