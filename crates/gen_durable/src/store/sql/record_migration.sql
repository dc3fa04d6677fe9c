-- called by: store::migrate::up     index: migrations_pkey
-- locks: nothing that exists
insert into gen_durable.migrations (version, name, oldest_served) values ($1, $2, $3)
