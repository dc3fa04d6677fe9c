-- The identity of this installation: a random name with which idempotency keys begin, since
-- instance ids begin at 1 in every schema. A restored database keeps the name. For a copy that
-- becomes another installation, an operator sets a new name with an update.
create table gen_durable.installation (
    one boolean primary key default true check (one),
    id  text not null default left(replace(gen_random_uuid()::text, '-', ''), 16)
);
insert into gen_durable.installation default values;
