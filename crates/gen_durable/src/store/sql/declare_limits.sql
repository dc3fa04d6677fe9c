-- called by: store::limit::declare     index: limits_pkey, limit_locks_pkey
-- locks: the rows of the limits with a changed declaration
select gen_durable._declare_limits($1::text::jsonb)
