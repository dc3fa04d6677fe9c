-- 0005 undone.
drop trigger instances_forget_all on gen_durable.instances;
drop trigger instances_forget on gen_durable.instances;
drop function gen_durable.forget_stories();
drop function gen_durable.trim_story(bigint, bigint);
drop function gen_durable.tell_endings(jsonb, bigint[]);
drop function gen_durable.tell(bigint[], text, text);
drop function gen_durable.tell_deadline(bigint, bigint, bigint, text);
drop function gen_durable.tell_woken(bigint[], text);
drop table gen_durable.transitions;
