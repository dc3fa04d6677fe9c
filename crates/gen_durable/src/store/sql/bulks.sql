-- called by: store::bulk::list     index: bulk_actions_pkey, backwards
-- locks: nothing
select b.id, b.action, b.status::text, b.machine, b.machine_version, b.step, b.queue, b.tenant, b.key, b.key_prefix, b.lane,
    b.partition, b.error_contains, b.error_group, b.since, b.until, b.retry_step, b.reason, b.actor, b.source, b.channel, b.expected, b.expected_is_exact,
    b.id_max, b.cursor, b.examined, b.changed, b.refused, b.refusals, b.state, b.error,
    coalesce(b.ended_at is null and b.leased_until > statement_timestamp(), false) as is_active,
    b.requested_at, b.updated_at, b.ended_at
from gen_durable.bulk_actions b
where b.id < $1
order by b.id desc
limit $2
