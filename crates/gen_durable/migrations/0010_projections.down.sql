-- 0010 undone, second half first.
drop function gen_durable.scopes_behind(text[], int[], boolean[], uuid, int, float8, float8, boolean);
drop function gen_durable.run_swap(bigint, int);
drop function gen_durable.run_open(bigint, int, uuid, text[], int, bigint, bigint, boolean);
drop function gen_durable.project_fail(text, text, bigint, text, text, float8, int);
drop function gen_durable.project_close(text, text, int, bigint, bigint, bigint, uuid, float8);
drop function gen_durable.rebuild_follows(text, text, bigint);
drop function gen_durable.project_open(text, text, int, uuid, text[], int, bigint, bigint, boolean);
drop function gen_durable.events_after(text, bigint, bigint, text[], int, bigint);
drop function gen_durable.generation(text, text);
drop table gen_durable.projection_run_failures;
drop table gen_durable.projection_failures;
drop table gen_durable.projection_runs;
drop table gen_durable.projections;
alter table gen_durable.workers drop column projections;
