-- called by: store::audit::begin     index: audit_pkey
-- locks: the audit row that this statement inserts, and up to ten of the oldest audit rows,
-- skipping rows that another transaction holds
-- Inserts a row of the audit log, and deletes those of the ten oldest rows that exceed the maximum
-- number ($6) or age ($7). Two deletions per insert would be enough to keep the log bounded.
with made as (
    insert into gen_durable.audit (actor, source, channel, action, subject) values ($1, $2, $3, $4, $5) returning id
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
