-- called by: store::step_results, for instances with a lane or a partition key, if the batch adds history     index: as write_keyed_step_results.sql; history_pkey
-- locks: as write_keyed_step_results.sql
-- Writes step results as write_keyed_step_results.sql does, and inserts history rows as
-- write_step_results_with_history.sql does: one row per committed result with recorded history.
with written as materialized (
    select * from gen_durable._write_keyed_step_results($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $20, $21::text::uuid, $22, $23)
),
ended as materialized (
    select e.*
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $6::text[], $10::text[],
                $14::text[], $15::text[], $16::int[], $17::real[], $18::text[])
        as e(id, epoch, seq, status, step, error, from_step, outcome, attempt, took, failure)
    where e.id = any (array(select unnest(written.marks) from written))
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
select written.*, (select count(*) from trimmed) from written
