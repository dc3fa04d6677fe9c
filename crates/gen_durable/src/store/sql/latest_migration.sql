-- called by: store::migrate::installed     index: none (one row per migration)
-- locks: nothing
select version, oldest_served from gen_durable.migrations order by version desc limit 1
