-- 0004 undone.
drop function gen_durable.result(bigint);
drop function gen_durable.enqueue(text, jsonb, text, jsonb, int, text, int, text, interval, timestamptz, text, text, text);
