-- 0003 undone.
drop function gen_durable.conclude(jsonb, text);
drop function gen_durable.enqueue_all(jsonb, bigint, int, boolean);
drop function gen_durable.refuse_own_lane(jsonb, bigint);
drop function gen_durable._lane_head(text, text);
drop function gen_durable.tell_parents(bigint[]);
