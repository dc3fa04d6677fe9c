-- A tenant with events. Transactions lock the row and never write it: each write would leave a dead
-- version for every event, and each append would read those versions while any transaction holds an
-- old snapshot. The last position of a log is read from the end of its index.
create table gen_durable.event_heads (
    tenant text primary key,
    constraint event_heads_names_have_a_length check (octet_length(tenant) <= 200)
);
