-- called by: store::step_results::write     index: instances_pkey, signals_pkey, signals_inbox, instances_key
-- locks: the instances of the step results by id, then parents by id, then lanes, then the targets
-- of signals in the effects; each for at most the timeout $2
select id, inbox, children from gen_durable._write_step_results_with_effects($1::text::jsonb, $2)
