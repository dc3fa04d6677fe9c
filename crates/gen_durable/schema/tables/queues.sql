-- Settings of a queue. A queue without a row is not paused.
create table gen_durable.queues (
    name         text primary key,
    paused_at    timestamptz,
    paused_by    text,
    -- How many seconds settled instances of this queue are kept. An engine that declares a
    -- retention writes it, and the upkeep of all engines uses it. Null: the settings of the engine
    -- that deletes the instances apply. Infinity: upkeep never deletes the instances.
    retention        float8,                         -- of done instances
    failed_retention float8,                         -- of failed and cancelled instances
    -- The tenants of a fair queue share the workers: see `_fair_candidates`. An engine declares it.
    fair             boolean not null default false,
    -- When an operator changed `fair`. The declaration of a starting worker then leaves it.
    fair_changed_at  timestamptz,
    -- The shares of tenants other than 1: how many instances of the tenant begin while one instance
    -- of a tenant with a share of 1 begins.
    tenant_shares    jsonb not null default '{}',
    -- Grows with every change of `fair` or `tenant_shares`. Pickers read the columns again when the
    -- sum over their queues has changed.
    fair_version     bigint not null default 0
);
create index queues_fair on gen_durable.queues (name) where fair;
