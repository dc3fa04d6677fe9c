-- called by: store::limit::resume     index: limits_pkey, limit_backlog_pkey
-- locks: the row of the limit, and rows of limit_backlog
select gen_durable.resume_limit($1)
