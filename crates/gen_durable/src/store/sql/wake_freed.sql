-- called by: store::limit::wake_freed     index: limit_backlog_held, limit_backlog_pkey
-- locks: rows of limit_backlog, skipping locked rows
select gen_durable._wake_freed($1)
