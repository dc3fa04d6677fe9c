-- called by: store::audit::begin     index: audit_pkey
-- locks: a few of the oldest records, skipping what is held
-- Of the ten oldest, those go that are too many or too old: two for each that comes would be enough.
with made as (
    insert into gen_durable.audit (who, place, via, act, subject) values ($1, $2, $3, $4, $5) returning id
),
old as materialized (
    select a.id, a.at from gen_durable.audit a order by a.id limit 10 for update skip locked
),
gone as (
    delete from gen_durable.audit a using old
    where a.id = old.id
      and (old.id <= (select id from made) - $6::bigint or old.at < gen_durable.clock() - make_interval(days => $7))
)
select id from made
