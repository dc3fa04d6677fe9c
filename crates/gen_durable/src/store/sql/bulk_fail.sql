-- called by: store::bulk::fail     index: bulk_actions_pkey
-- locks: the bulk action
-- Ends a bulk action that its runner cannot continue.
with failed as (
    update gen_durable.bulk_actions b
    set state = 'failed', error = $3, ended_at = gen_durable.clock(), updated_at = gen_durable.clock()
    where b.id = $1 and b.runner = $2::text::uuid and b.ended_at is null
    returning b.id, b.action, b.actor, b.source, b.channel, b.changed, b.refused, b.examined
)
insert into gen_durable.audit (actor, source, channel, action, subject, succeeded, outcome, ended_at)
select f.actor, f.source, f.channel, format('bulk %s ended', f.action), format('bulk %s', f.id), false,
    format('failed: %s changed, %s refused, %s examined; %s', f.changed, f.refused, f.examined, $3::text), gen_durable.clock()
from failed f
returning id
