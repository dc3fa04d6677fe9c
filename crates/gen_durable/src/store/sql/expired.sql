-- called by: store::lease::expired     index: none (a row a process)
-- locks: nothing
-- After a start of Postgres itself nobody has had the chance to renew: wait one lease period. And the asker judges only
-- when its own lease has been good for as long: if the whole machine slept, everybody's ran out, and no connection broke.
select id::text from gen_durable.workers
where lease_expires_at < statement_timestamp()
  and pg_postmaster_start_time() < statement_timestamp() - make_interval(secs => $1)
  and exists (
      select from gen_durable.workers me
      where me.id = $2::text::uuid and me.lease_expires_at >= statement_timestamp()
        and me.started_at < statement_timestamp() - make_interval(secs => $1))
order by lease_expires_at
limit 100
