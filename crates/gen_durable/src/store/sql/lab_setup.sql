-- called by: store::lab::freeze_clock     index: none
-- locks: the catalog rows of the objects that this statement creates
create table gen_durable.lab_clock (now timestamptz not null);
insert into gen_durable.lab_clock values (date_trunc('milliseconds', statement_timestamp()));
create or replace function gen_durable.clock() returns timestamptz
    language sql stable parallel safe
    as 'select now from gen_durable.lab_clock';
