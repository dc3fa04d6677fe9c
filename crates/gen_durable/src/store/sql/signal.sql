-- called by: store::signal::deliver, store::operate::deliver     index: instances_pkey or instances_key; signals_dedup
-- locks: the target's row, for at most the lock timeout $9
-- The CTE `bounded` sets the lock timeout, and `synchronous_commit` if that is off, for this
-- transaction only. Postgres calls the function that delivers the signal for the row of `bounded`,
-- so after these settings.
with bounded as materialized (
    select set_config('lock_timeout', $9, true),
        case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true) end
)
select gen_durable.signal($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8) from bounded
