-- called by: store::inspect::Inspect::unserved     index: none: it reads the table, for people
-- locks: nothing
select i.fsm, i.fsm_version, count(*)
from gen_durable.instances i
where i.finished_at is null
  and not exists (
    select from gen_durable.workers w
    where w.lease_expires_at > statement_timestamp() and i.fsm || '/' || i.fsm_version = any (w.machines))
group by i.fsm, i.fsm_version
order by i.fsm, i.fsm_version
