-- 0004 undone.
drop function gen_durable.repair(text, text, text, text, int);
drop function gen_durable.enter_lanes(jsonb);
drop function gen_durable.place(bigint, int);
drop function gen_durable.unlead(bigint[]);
drop function gen_durable._lane_worker(bigint);
drop function gen_durable.led_heads(uuid, text, text, int);
drop function gen_durable.deal(text, text, bigint[]);
drop function gen_durable.next_turn(text, text);
