-- called by: store::timer::due     index: timers_due
-- locks: nothing
select id, due_at, anchor_at, remaining, missed_count, manual, cycle, missed, schedule, now
from gen_durable._due_timers($1, $2, $3, $4, $5, $6)
