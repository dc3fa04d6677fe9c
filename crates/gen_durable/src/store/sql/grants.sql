-- called by: store::migrate::grant     index: none
-- locks: the catalog rows of the granted objects
-- Grants rights to two roles. The owner of the schema runs migrations. The runtime role runs steps
-- and calls functions: this role can write rows and cannot define objects. The reader role can only
-- read. An operator has to run these grants again after every migration.
grant usage on schema gen_durable to "the_runtime", "the_reader";
grant select on all tables in schema gen_durable to "the_runtime", "the_reader";
grant insert, update, delete on gen_durable.instances, gen_durable.workers, gen_durable.queues, gen_durable.collect_cursors, gen_durable.signals,
    gen_durable.lanes, gen_durable.partition_cursors, gen_durable.placement_lock, gen_durable.placement_watermarks, gen_durable.history, gen_durable.timers, gen_durable.schedules to "the_runtime";
grant insert, update, delete on gen_durable.events, gen_durable.event_heads, gen_durable.event_scans, gen_durable.projections,
    gen_durable.projection_runs, gen_durable.projection_failures, gen_durable.projection_run_failures,
    gen_durable.log_walks, gen_durable.audit, gen_durable.bulk_actions, gen_durable.limits, gen_durable.limit_keys,
    gen_durable.limit_locks, gen_durable.limit_tokens, gen_durable.limit_holds, gen_durable.limit_backlog,
    gen_durable.rollups, gen_durable.rollup_writers, gen_durable.rollup_lock to "the_runtime";
grant usage, select on all sequences in schema gen_durable to "the_runtime";
grant execute on all functions in schema gen_durable to "the_runtime", "the_reader";
