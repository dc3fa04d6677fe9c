-- 0011 undone.
drop table gen_durable.audit;
