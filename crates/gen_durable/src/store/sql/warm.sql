-- called by: store::step_results::warm     index: none
-- locks: nothing
-- Calls the functions of a commit with empty arrays, on a new connection, so that the functions
-- load catalog entries and plan their statements, which takes as long as several commits. Writes
-- nothing.
select (select count(*) from gen_durable._write_step_results('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', null)),
    (select count(*) from gen_durable._promote_successors('{}', '{}', null, 0, '{}'))
