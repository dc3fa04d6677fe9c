-- called by: store::audit::list     index: audit_pkey
-- locks: nothing
select a.id, a.at, a.actor, a.source, a.channel, a.action, a.subject, a.succeeded, a.outcome, a.ended_at
from gen_durable.audit a
where a.id < $1
order by a.id desc
limit $2
