-- 0002 undone.
drop function gen_durable.settle(bigint[], bigint[], bigint[], text[], int[], text[], text[], text[], text[], text[], int[], float8[], text);
drop function gen_durable.pick(text[], int[], text[], smallint[], timestamptz[], bigint[], text[], uuid, float8, int);
drop function gen_durable._place_new(int);
drop function gen_durable._placement_start(bigint, xid8[], bigint[], pg_snapshot);
drop function gen_durable._set_aside_refused(text[], int[], text[], smallint[], timestamptz[], bigint[], text[]);
drop function gen_durable._knows_step(text[], text, int, text);
drop function gen_durable.look_anew();
drop function gen_durable.looks_anew();
drop function gen_durable.children_of(bigint, int, bigint, text[]);
drop function gen_durable.inbox_of(bigint);
drop function gen_durable.inbox_bytes_max();
drop table gen_durable.signals;
