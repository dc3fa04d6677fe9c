-- The identity of this installation: a random name that idempotency keys begin with, since ids
-- begin at 1 in every schema. A restored database keeps it. A copy that becomes another
-- installation gets a new one by an update.
create table gen_durable.installation (
    one boolean primary key default true check (one),
    id  text not null default left(replace(gen_random_uuid()::text, '-', ''), 16)
);
insert into gen_durable.installation default values;
