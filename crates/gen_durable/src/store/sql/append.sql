-- called by: store::events::append     index: event_heads_pkey, events_log, events_unplaced, event_looks_pkey
-- locks: the heads of the tenants' logs, in the order of tenants, until the commit, each for at most the lock timeout given last
-- The first row sets, for this transaction alone, how long each lock may be waited for, and that what was answered is durable. The
-- function runs for that row, so after it.
with bounded as materialized (
    select set_config('lock_timeout', $9, true),
        case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true) end
)
select (made.row).pos, (made.row).arrival
from (select gen_durable.append($1, $2, $3, $4, $5, $6, $7, $8) as row from bounded) made
