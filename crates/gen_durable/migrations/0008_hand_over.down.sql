-- 0008 undone.
drop function gen_durable._release(bigint[]);
drop function gen_durable._cancel_below(bigint[], int, bigint, int, text, text);
drop function gen_durable.cancel(bigint, text, text, text[], text, boolean);
drop function gen_durable._cancel_live(bigint[], text);
drop function gen_durable.settle_keyed(bigint[], bigint[], bigint[], text[], int[], text[], text[], text[], text[], text[],
    int[], float8[], text, bigint[], bigint[], uuid, float8, text[]);
drop function gen_durable.hand_over(bigint[], bigint[], bigint[], uuid, float8, text[]);
