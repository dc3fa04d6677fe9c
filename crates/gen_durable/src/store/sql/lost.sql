-- called by: store::lease::lost     index: instances_pkey
-- locks: nothing
-- Returns which of the given claims of a worker are no longer valid.
select claim.id, claim.epoch
from unnest($1::bigint[], $2::bigint[]) as claim(id, epoch)
where not exists (select from gen_durable.instances i where i.id = claim.id and i.claim_epoch = claim.epoch)
