-- called by: store::collect::declare_retentions     index: queues_pkey
-- locks: the row of the queue in `queues`, if the retention of the queue changes
insert into gen_durable.queues (name, retention, failed_retention) values ($1, $2, $3)
on conflict (name) do update set retention = excluded.retention, failed_retention = excluded.failed_retention
where (queues.retention, queues.failed_retention) is distinct from (excluded.retention, excluded.failed_retention)
