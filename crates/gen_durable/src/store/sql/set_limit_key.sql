-- called by: store::limit::set_key     index: limit_keys_pkey, limit_backlog_pkey
-- locks: the row of the key, and rows of limit_backlog
select gen_durable.set_limit_key($1, $2, $3::text::jsonb)
