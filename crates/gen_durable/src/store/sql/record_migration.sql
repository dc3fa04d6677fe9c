-- called by: store::migrate::up     index: migrations_pkey
-- locks: no existing rows
insert into gen_durable.migrations (version, name, oldest_served) values ($1, $2, $3)
