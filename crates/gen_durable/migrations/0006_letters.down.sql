-- 0006 undone.
drop function gen_durable.signal_or_start(jsonb, text, jsonb, text, text[], int);
drop function gen_durable.signal_all(jsonb, int);
drop function gen_durable.result(bigint);
drop function gen_durable.enqueue(text, jsonb, text, jsonb, int, text, int, text, interval, timestamptz, text, text, text);
drop function gen_durable.signal(bigint, text, text, text[], text, jsonb, text, int);
