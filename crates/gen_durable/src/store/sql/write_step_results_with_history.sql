-- called by: store::step_results::{write, write_within}, if the batch adds history     index: as write_step_results.sql; history_pkey
-- locks: as write_step_results.sql
-- Writes step results, and inserts one history row per committed step result with recorded history.
-- A step result that the fence rejected adds no row. Only the called functions read tables, and
-- they pin their own plans. A step result without `from_step` adds no row either; the statement
-- uses it only to trim the history of its instance.
with written as materialized (
    select id, inbox, children from gen_durable._write_step_results($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
),
ended as materialized (
    select e.*
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $6::text[], $10::text[],
                $14::text[], $15::text[], $16::int[], $17::real[], $18::text[])
        as e(id, epoch, seq, status, step, error, from_step, outcome, attempt, took, failure)
    join written on written.id = e.id
),
recorded as (
    insert into gen_durable.history
        (instance_id, step_seq, claim_epoch, at, took_seconds, attempt, status, outcome, from_step, to_step, error, worker)
    select e.id, e.seq + 1, e.epoch + (e.status <> 'executing')::int, gen_durable.clock(), e.took, coalesce(e.attempt, 0),
        e.status::gen_durable.durable_status, e.outcome, e.from_step, coalesce(e.step, e.from_step),
        left(coalesce(e.failure, e.error), 1000), $19
    from ended e
    where e.from_step is not null
),
trimmed as materialized (
    select gen_durable._trim_history(id, seq + 1) from ended where seq >= 999 and (seq + 1) % 100 < 2
)
select id, inbox, children, (select count(*) from trimmed) from written
