-- The inboxes of instances. A signal stays until a step that has received it commits progress. A
-- signal with a dedup key then stays without its payload, so that the same signal is not delivered
-- twice; upkeep deletes the row after its retention.
create table gen_durable.signals (
    id          bigint generated always as identity primary key,
    -- There is no foreign key, since its check would lock the target for each signal, and its
    -- cascade would need an index on all signals.
    target_id   bigint not null,
    inserted_at timestamptz not null default gen_durable.clock(),
    consumed_at timestamptz,
    name        text not null,
    dedup_key   text,
    payload     jsonb not null,
    -- The size of the payload as a step receives it. `signal` limits the sum of an inbox.
    bytes       int generated always as (octet_length(payload::text)) stored,
    constraint signals_names_have_a_length check (octet_length(name) between 1 and 200 and octet_length(dedup_key) <= 512),
    -- Every row is in at least one of the two indexes on target_id. A trigger on `instances` uses
    -- these indexes to delete the signals of a deleted instance.
    constraint signals_consumed_has_a_dedup_key check (consumed_at is null or dedup_key is not null)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);

create index signals_inbox on gen_durable.signals (target_id, id) where consumed_at is null;
create unique index signals_dedup on gen_durable.signals (target_id, dedup_key) where dedup_key is not null;
-- Upkeep reads consumed signals, which are kept for their dedup keys, by the time of consumption,
-- and deletes them.
create index signals_consumed on gen_durable.signals (consumed_at) where consumed_at is not null;
