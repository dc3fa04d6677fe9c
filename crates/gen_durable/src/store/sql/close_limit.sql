-- called by: store::limit::close     index: limits_pkey
-- locks: the row of the limit
select gen_durable.close_limit($1, $2)
