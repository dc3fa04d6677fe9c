-- Returns the condition and the order with which a search reads instances by an index. In both, $1
-- is the id below which the search reads, $2 its lowest id, $4 the machine, $6 the status, $7 the
-- step, $9 the tenant, $10 the key, $11 the prefix of a key, $17 the text after all such keys and
-- $18 the number of the group of errors. The conditions compare rows and the order begins with the
-- columns of the index, so that no other index has the order.
--   called by: _search_floor, _search_rows, _bulk_page      index: none      locks: nothing
create function gen_durable._search_range(p_index text) returns text[]
language sql immutable parallel safe
as $$
select case p_index
    when 'id' then array['i.id >= $2 and i.id < $1', 'i.id desc']
    when 'status' then array[
        $q$i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
           and (i.status, i.id) >= ($6::gen_durable.durable_status, $2) and (i.status, i.id) < ($6::gen_durable.durable_status, $1)$q$,
        'i.status desc, i.id desc']
    when 'tenant' then array[
        $q$i.tenant <> '' and (i.tenant, i.id) >= ($9, $2) and (i.tenant, i.id) < ($9, $1)$q$,
        'i.tenant desc, i.id desc']
    when 'failed_step' then array[
        $q$i.failed_step is not null and (i.machine, i.failed_step, i.id) >= ($4, $7, $2)
           and (i.machine, i.failed_step, i.id) < ($4, $7, $1)$q$,
        'i.machine desc, i.failed_step desc, i.id desc']
    when 'error_group' then array[
        $q$i.error_group is not null and (i.error_group, i.id) >= ($18, $2) and (i.error_group, i.id) < ($18, $1)$q$,
        'i.error_group desc, i.id desc']
    when 'key' then array[
        $q$i.key is not null and (i.key collate "C", i.id) >= ($10, $2) and (i.key collate "C", i.id) < ($10, $1)$q$,
        'i.key collate "C" desc, i.id desc']
    when 'prefix' then array[
        $q$i.key is not null and i.key collate "C" >= $11 and i.key collate "C" < $17 and i.id >= $2 and i.id < $1$q$,
        'i.key collate "C"']
    end
$$;
