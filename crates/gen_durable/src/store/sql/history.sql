-- called by: store::history::page     index: history_pkey, backwards
-- locks: nothing
select step_seq, claim_epoch, at, woken_at, took_seconds, attempt, status::text, outcome, from_step, to_step, error, cause, worker
from gen_durable._history_page($1, $2, $3, $4)
order by step_seq desc, claim_epoch desc
