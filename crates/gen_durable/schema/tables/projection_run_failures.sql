-- Events that a run could not apply and has skipped. When the rows of a shadow rebuild become the
-- rows that readers see, these events become parked events of the scope.
create table gen_durable.projection_run_failures (
    run_id   bigint not null references gen_durable.projection_runs (id) on delete cascade,
    position bigint not null,
    error    text not null,
    primary key (run_id, position)
);
