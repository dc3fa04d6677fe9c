-- called by: store::search::page, for a time of enqueueing     index: instances_pkey
-- locks: nothing
-- Returns the ids between which the instances are that were enqueued from $1 to $2.
select case when $1::timestamptz is null then 0 else gen_durable._first_id_at($1) end as lowest,
    case when $2::timestamptz is null then 9223372036854775807 else gen_durable._first_id_at($2) end as below
