-- called by: store::resolve::inputs     index: instances_pkey, signals_inbox, instances_children
-- locks: nothing: this worker holds the claims, and the commits have ended before this statement
-- takes its snapshot
-- Returns the inbox and the children of instances that run ahead, if the connection was lost before
-- the commit returned them. Leaves out an instance if this worker has lost the claim since the
-- commit, for example by a cancel.
select i.id, gen_durable._inbox_of(i.id) as inbox,
    case when i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end as children
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as claim(id, epoch, seq)
join gen_durable.instances i on i.id = claim.id and i.claim_epoch = claim.epoch and i.step_seq = claim.seq + 1
