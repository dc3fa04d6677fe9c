-- called by: store::explain::relations     index: signals_inbox, instances_children
-- locks: nothing
select 'signal' as kind, s.name as name, count(*) as count
from gen_durable.signals s
where s.target_id = $1 and s.consumed_at is null
group by s.name
union all
select 'child', c.status::text, count(*)
from gen_durable.instances c
where c.parent_id = $1
group by c.status
order by 1, 2
