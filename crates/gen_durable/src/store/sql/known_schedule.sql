-- called by: store::schedule::known     index: schedules_pkey
-- locks: nothing
select gen_durable.clock() as now, s.cycle, s.anchor_at, s.remaining
from (select) one
left join gen_durable.schedules s on s.name = $1
