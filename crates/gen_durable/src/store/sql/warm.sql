-- called by: store::settle::warm     index: none
-- locks: none
-- Nothing is written. The functions of a commit read what they must know of the tables, and plan: on a new connection that takes as
-- long as several commits.
select (select count(*) from gen_durable.settle('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', null)),
    (select count(*) from gen_durable.hand_over('{}', '{}', '{}', null, 0, '{}'))
