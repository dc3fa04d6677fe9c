-- called by: store::limit::pause     index: limits_pkey
-- locks: the row of the limit
select gen_durable.pause_limit($1)
