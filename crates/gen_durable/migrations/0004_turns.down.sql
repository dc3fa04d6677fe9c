-- 0004 undone.
drop function gen_durable.repair(text, text, text, text, int);
drop function gen_durable.settle_keyed(bigint[], bigint[], bigint[], text[], int[], text[], text[], text[], text[], text[],
    int[], float8[], text, bigint[], uuid, float8, text[]);
drop function gen_durable.hand_over(bigint[], bigint[], uuid, float8, text[]);
drop function gen_durable.enter_lanes(jsonb);
drop function gen_durable.place(bigint, int);
drop function gen_durable.deal(text, text);
drop function gen_durable.next_turn(text, text);
