-- called by: store::step_results::write_within     index: instances_pkey, signals_pkey, signals_inbox, instances_key
-- locks: the instance of the step result, then its parent, then the targets of signals in the
-- effects, until the step's own transaction ends
-- Writes the result of a step in the step's own transaction; after this statement, the worker sends
-- only the end of the transaction. If it never reaches the server (a silent network failure), the
-- idle-in-transaction timeout releases the row locks.
select id, inbox, children, set_config('idle_in_transaction_session_timeout', $2, true)
from gen_durable._write_step_results_with_effects($1::text::jsonb, null)
