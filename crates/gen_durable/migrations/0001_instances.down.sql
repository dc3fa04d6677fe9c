-- 0001 undone: everything, the schema included. Nothing is left behind.
drop table gen_durable.placer;
drop table gen_durable.turns;
drop table gen_durable.lanes;
drop table gen_durable.queues;
drop table gen_durable.workers;
drop table gen_durable.instances;
drop sequence gen_durable.rounds;
drop sequence gen_durable.arrivals;
drop domain gen_durable.key_name;
drop domain gen_durable.tenant_name;
drop domain gen_durable.queue_name;
drop domain gen_durable.name;
drop type gen_durable.durable_status;
drop table gen_durable.migrations;
drop function gen_durable.lane_hash(text, text);
drop function gen_durable.clock();
drop schema gen_durable;
