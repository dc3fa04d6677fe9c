-- called by: store::inspect::counts     index: none: it reads the whole table, for operators
-- locks: nothing
select machine, machine_version, step, status::text, count(*) as count
from gen_durable.instances
group by machine, machine_version, step, status
order by machine, machine_version, status, step
