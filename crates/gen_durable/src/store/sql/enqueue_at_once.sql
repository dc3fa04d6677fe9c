-- called by: store::enqueue, as a transaction of its own     index: instances_key; instances_lane, lanes_pkey
-- locks: the placement lock, if it is free, and the lanes; waits for a transaction that has
-- inserted the same key and not committed yet, for at most the lock timeout $2
-- The CTE `bounded` sets the lock timeout, and `synchronous_commit` if that is off, for this
-- transaction only. Postgres calls the function that inserts the instances for the row of
-- `bounded`, so after these settings.
with bounded as materialized (
    select set_config('lock_timeout', $2, true),
        case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true) end
)
select (made.row).place, (made.row).id, (made.row).is_new, (made.row).eligible_at
from (select gen_durable.enqueue_all($1::text::jsonb, p_at_once => true) as row from bounded) made
order by 1
