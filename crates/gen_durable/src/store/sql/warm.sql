-- called by: store::step_results::warm     index: none
-- locks: nothing
-- Writes nothing. On a new connection, the functions of a commit have to load catalog entries and
-- plan their statements, which takes as long as several commits.
select (select count(*) from gen_durable._write_step_results('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', null)),
    (select count(*) from gen_durable._promote_successors('{}', '{}', '{}', null, 0, '{}'))
