-- called by: store::settle::settle_within     index: instances_pkey, signals_pkey, signals_inbox, instances_key
-- locks: the ending's own row, then its parent, then the targets of riding signals, until the step's own transaction ends
-- Nothing follows but its end: a server that never hears it (silence on the wire) lets go of the rows after a while.
select id, inbox, children, set_config('idle_in_transaction_session_timeout', $2, true)
from gen_durable.conclude($1::text::jsonb, null)
