-- Events that a run has skipped. When a shadow becomes the rows that readers see, they become its
-- parked events.
create table gen_durable.projection_run_failures (
    run_id   bigint not null references gen_durable.projection_runs (id) on delete cascade,
    position bigint not null,
    error    text not null,
    primary key (run_id, position)
);
