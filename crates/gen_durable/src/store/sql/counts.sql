-- called by: store::inspect::Inspect::counts     index: none: it reads the whole table, for operators
-- locks: nothing
select fsm, fsm_version, step, status::text, count(*)
from gen_durable.instances
group by fsm, fsm_version, step, status
order by fsm, fsm_version, status, step
