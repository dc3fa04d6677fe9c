-- 0009 undone, first half last.
drop function gen_durable.trim_logs(float8, text[], int, int, float8);
drop function gen_durable.walk_page(text, text, int, int, float8, float8);
drop table gen_durable.log_walks;
drop function gen_durable.discover(pg_snapshot, bigint, int);
drop function gen_durable.record(text, text, jsonb, int, jsonb);
drop function gen_durable.record_riders(jsonb, bigint[], boolean);
drop function gen_durable.append(text[], text[], int[], text[], text[], bigint[], text[], text);
drop function gen_durable.place_events(text[], boolean);
drop function gen_durable.place_locked(text[], boolean);
drop table gen_durable.event_looks;
drop table gen_durable.events;
drop table gen_durable.event_heads;
