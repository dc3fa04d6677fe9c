-- called by: store::settle::settle     index: instances_pkey, signals_pkey, signals_inbox, instances_key
-- locks: the endings' own rows by id, then parents by id, then lanes, then the targets of riding signals; each for at most the timeout
select id, inbox, children from gen_durable.conclude($1::text::jsonb, $2)
