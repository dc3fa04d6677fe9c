-- called by: store::limit::collect     index: limit_tokens_pkey, limit_locks_pkey
-- locks: limit_locks by name, skipping locked rows, and the rows of limit_tokens that it deletes
select * from gen_durable._collect_rates($1, $2, $3)
