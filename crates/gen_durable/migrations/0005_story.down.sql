-- 0005 undone.
drop function gen_durable.collect(float8, float8, float8, int);
drop trigger instances_truncate_dependents on gen_durable.instances;
drop trigger instances_delete_dependents on gen_durable.instances;
drop function gen_durable._delete_dependents();
drop function gen_durable._history_page(bigint, bigint, bigint, int);
drop function gen_durable.trim_story(bigint, bigint);
drop function gen_durable.tell_endings(jsonb, bigint[]);
drop function gen_durable.tell(bigint[], text, text);
drop function gen_durable.tell_deadline(bigint, bigint, bigint, text);
drop function gen_durable.tell_woken(bigint[], text);
drop table gen_durable.transitions;
