-- called by: store::fair::declare     index: queues_pkey
-- locks: the rows of the queues that become fair
-- Makes the queues fair that the code of a worker declares as fair, unless an operator has changed
-- that.
insert into gen_durable.queues as q (name, fair, fair_version)
select name, true, 1 from unnest($1::text[]) as declared(name) order by name
on conflict (name) do update set fair = true, fair_version = q.fair_version + 1
where not q.fair and q.fair_changed_at is null
