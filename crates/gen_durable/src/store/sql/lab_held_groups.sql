-- called by: store::lab::held_groups     index: limit_backlog_held
-- locks: nothing
-- Returns the groups that wait for the end of a claim, at most 10,000.
select distinct b.limit_group from gen_durable.limit_backlog b where b.held_on is not null limit 10000
