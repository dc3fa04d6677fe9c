-- called by: store::limit::reset     index: limits_pkey, limit_backlog_pkey
-- locks: the row of the limit, and rows of limit_backlog
select gen_durable.reset_limit($1)
