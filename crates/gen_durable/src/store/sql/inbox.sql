-- called by: store::family::inbox     index: signals_inbox
-- locks: nothing
select s.id, s.name, s.payload::text, s.dedup_key, s.inserted_at
from gen_durable.signals s
where s.target_id = $1 and s.consumed_at is null
order by s.id
limit $2
