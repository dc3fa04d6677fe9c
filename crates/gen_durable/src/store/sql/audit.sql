-- called by: store::audit::Inspect::audit     index: audit_pkey
-- locks: nothing
select a.id, a.at, a.who, a.place, a.via, a.act, a.subject, a.went_well, a.outcome, a.ended_at
from gen_durable.audit a
where a.id < $1
order by a.id desc
limit $2
