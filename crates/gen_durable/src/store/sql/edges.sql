-- called by: store::flow::edges     index: history_pkey, backwards; instances_pkey
-- locks: nothing
-- Counts the transitions between steps by machine, in the last $1 history rows of the newest
-- instances.
select looked.machine, looked.outcome, looked.from_step, looked.to_step, count(*) as count,
    avg(looked.took_seconds)::float8 as took_seconds, max(looked.at) as last_at
from (
    select t.outcome, t.from_step, t.to_step, t.took_seconds, t.at,
        (select i.machine from gen_durable.instances i where i.id = t.instance_id) as machine
    from gen_durable.history t
    order by t.instance_id desc, t.step_seq desc, t.claim_epoch desc
    limit $1
) looked
where looked.machine is not null
group by 1, 2, 3, 4
order by 1, 5 desc
limit 2000
