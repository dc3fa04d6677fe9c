-- 0007 undone.
drop function gen_durable.expire(int, float8, float8, timestamptz);
drop function gen_durable.run_schedule(text);
drop function gen_durable.resume_schedule(text, text, timestamptz, timestamptz, int);
drop function gen_durable.pause_schedule(text, text);
drop function gen_durable.set_schedule(text, text, text, timestamptz, timestamptz, int, text);
drop function gen_durable.register_schedule(text, text, text, timestamptz, timestamptz, int);
drop function gen_durable.put_ahead(text, timestamptz, int);
drop function gen_durable.cancel_timer(bigint);
drop function gen_durable.fire(jsonb, text);
drop function gen_durable.due_timers(int, float8, float8, timestamptz, text[], bigint[]);
drop function gen_durable.upcoming(float8, float8, int);
drop function gen_durable.arm(bigint, jsonb);
drop trigger instances_end_repeats on gen_durable.instances;
drop function gen_durable.end_repeats();
alter table gen_durable.workers drop column schedules;
drop table gen_durable.timers;
drop table gen_durable.schedules;
