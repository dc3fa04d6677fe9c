-- The placement lock: a transaction that assigns lane positions or chooses partition holders locks
-- this row, for the duration of one statement.
create table gen_durable.placement_lock (one boolean primary key default true check (one));
insert into gen_durable.placement_lock default values;
