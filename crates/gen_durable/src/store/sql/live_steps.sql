-- called by: store::inspect::live_steps, once at the start of an engine     index: none
-- locks: nothing
-- A bounded look: names that no build knows show in the first rows as well as in the last.
select fsm, fsm_version, step, count(*)
from (
    select fsm, fsm_version, step from gen_durable.instances where finished_at is null limit 100000
) live
group by fsm, fsm_version, step
order by fsm, fsm_version, step
limit 1000
