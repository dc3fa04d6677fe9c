-- called by: store::limit::set     index: limits_pkey, limit_backlog_pkey
-- locks: the row of the limit, and rows of limit_backlog
select gen_durable.set_limit($1, $2::text::jsonb)
