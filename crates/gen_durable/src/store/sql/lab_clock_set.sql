-- called by: store::lab::set_clock     index: none (one row)
-- locks: the clock's row
update gen_durable.lab_clock set now = $1
