-- called by: store::step_results::write_within     index: instances_pkey, signals_inbox for instances that run ahead
-- locks: the instance's row, until the step's own transaction ends
-- Writes the result of a step in the step's own transaction; after this statement, the worker sends
-- only the end of the transaction. If it never reaches the server (a silent network failure), the
-- idle-in-transaction timeout releases the row lock.
select id, inbox, children, set_config('idle_in_transaction_session_timeout', $14, true)
from gen_durable._write_step_results($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
