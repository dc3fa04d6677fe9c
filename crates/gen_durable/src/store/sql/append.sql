-- called by: store::events::append     index: event_heads_pkey, events_log, events_unplaced, event_scans_pkey
-- locks: the log heads of the tenants, in tenant order, until the commit, each for at most the lock
-- timeout $9
-- The CTE `bounded` sets the lock timeout, and `synchronous_commit` if that is off, for this
-- transaction only. Postgres calls the function that appends the events for the row of `bounded`,
-- so after these settings.
with bounded as materialized (
    select set_config('lock_timeout', $9, true),
        case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true) end
)
select (made.row).pos, (made.row).arrival_no
from (select gen_durable._append($1, $2, $3, $4, $5, $6, $7, $8) as row from bounded) made
