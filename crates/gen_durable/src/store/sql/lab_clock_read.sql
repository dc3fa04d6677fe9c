-- called by: store::lab::clock     index: none (one row)
-- locks: nothing
select gen_durable.clock()
