-- 0008 undone.
drop function gen_durable.settle_keyed(bigint[], bigint[], bigint[], text[], int[], text[], text[], text[], text[], text[],
    int[], float8[], text, bigint[], bigint[], uuid, float8, text[]);
drop function gen_durable.hand_over(bigint[], bigint[], bigint[], uuid, float8, text[]);
