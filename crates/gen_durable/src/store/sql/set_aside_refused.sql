-- called by: store::pick::set_aside_refused     index: instances_pick, instances_fair, instances_suspects, instances_pkey
-- locks: the candidates of a refused _pick, FOR NO KEY UPDATE SKIP LOCKED
select id, machine, step, attempt, reason from gen_durable._set_aside_refused($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb)
