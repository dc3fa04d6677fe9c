-- called by: store::enqueue, where the transaction ends with it     index: instances_key; instances_lane, lanes_pkey
-- locks: the placer, if nobody holds it, and the lanes; waits for a transaction that is about to take the same key, for at most the
-- lock timeout given last
-- The first row sets, for this transaction alone, how long each lock may be waited for, and that what was answered is durable. The
-- function runs for that row, so after it.
with bounded as materialized (
    select set_config('lock_timeout', $2, true),
        case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true) end
)
select (made.row).place, (made.row).id, (made.row).is_new, (made.row).eligible_at
from (select gen_durable.enqueue_all($1::text::jsonb, p_at_once => true) as row from bounded) made
order by 1
