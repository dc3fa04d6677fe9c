create table gen_durable.events (
    arrival_no     bigint generated always as identity primary key,
    position    bigint,                              -- null until a position is assigned
    at          timestamptz not null default gen_durable.clock(),
    -- The instance that recorded the event; no foreign key, since events stay when instances are
    -- deleted.
    instance_id bigint,
    xid         xid8, -- the transaction that recorded the event without a position
    version     int not null default 1,
    tenant      text not null default '',
    name        text not null,
    step        text,                                -- the step that recorded the event
    payload     jsonb not null,
    headers     jsonb,
    constraint events_names_have_a_length check (octet_length(tenant) <= 200 and octet_length(name) between 1 and 200),
    constraint events_positions_begin_at_one check (position > 0)
) with (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 1
);

-- The log of a tenant in its order. Two events never have the same position.
create unique index events_log on gen_durable.events (tenant, position) where position is not null;
-- Events without a log position: the first index is by tenant, the second over all tenants.
create index events_unplaced on gen_durable.events (tenant, xid, arrival_no) where position is null;
create index events_unplaced_all on gen_durable.events (xid) where position is null;
-- Indexes of events by the instance that recorded them, and by event name.
create index events_instance on gen_durable.events (instance_id, arrival_no) where instance_id is not null;
create index events_name on gen_durable.events (tenant, name, position) where position is not null;
