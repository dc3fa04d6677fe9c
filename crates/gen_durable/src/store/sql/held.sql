-- called by: store::lease::held     index: instances_held
-- locks: nothing
select id, claim_epoch, step_seq from gen_durable.instances
where locked_by = $1::text::uuid and status = 'executing'
  and updated_at < gen_durable.clock() - make_interval(secs => $2)
order by id
