-- called by: store::settle::settle     index: instances_pkey, signals_inbox for what runs ahead
-- locks: instances by id, in the order of the arrays, for at most the lock timeout given last
select id, inbox, children from gen_durable.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
