-- called by: store::lab::next_due     index: none: a lab is small
-- locks: nothing
select min(eligible_at) from gen_durable.instances
where status = 'runnable' and eligible_at > gen_durable.clock() and eligible_at <= $1
