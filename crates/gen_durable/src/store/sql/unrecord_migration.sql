-- called by: store::migrate::down     index: migrations_pkey
-- locks: the migration's row
delete from gen_durable.migrations where version = $1
