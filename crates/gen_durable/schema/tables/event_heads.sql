-- One row per tenant with events: the lock of the tenant's log. Transactions lock the row and never
-- update it: an update for every event would leave a dead version of the row, and each append would
-- read those versions while any transaction holds an old snapshot. The last position of a log is
-- read from the end of the index `events_log`.
create table gen_durable.event_heads (
    tenant text primary key,
    constraint event_heads_names_have_a_length check (octet_length(tenant) <= 200)
);
