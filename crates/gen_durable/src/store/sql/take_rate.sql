-- called by: store::limit::take     index: limit_locks_pkey, limit_tokens_pkey
-- locks: the lock of the limit
select gen_durable.take_rate($1, $2, $3)
