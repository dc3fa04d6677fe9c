-- called by: store::settle::settle_within     index: instances_pkey, signals_inbox for what runs ahead
-- locks: the instance's row, until the step's own transaction ends
-- Nothing follows but its end: a server that never hears it (silence on the wire) lets go of the row after a while.
select id, inbox, children, set_config('idle_in_transaction_session_timeout', $14, true)
from gen_durable.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
