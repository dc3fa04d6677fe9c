-- called by: store::pulse::queued_counts     index: instances_lane, instances_arrival_no
-- locks: nothing
-- Counts the instances in lanes and those that placement has not examined yet by machine, step and
-- status, at most $1 of each kind. No index has the queued instances alone, so the caller selects
-- them, and learns from the sums whether the statement has read all.
select looked.has_arrived, looked.in_lane, looked.machine, looked.machine_version, looked.step, looked.status::text, count(*) as count
from (
    (select false as has_arrived, i.in_lane, i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.in_lane
     order by i.lane_hash, i.lane_position limit $1)
    union all
    (select true, i.in_lane, i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.arrival_no is not null
     order by i.arrival_no limit $1)
) looked
group by 1, 2, 3, 4, 5, 6
