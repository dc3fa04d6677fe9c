-- Deletes the history and the signals of deleted instances, whether the collector or a person
-- deleted the instances.
--   called by: triggers      index: history_pkey, signals_inbox, signals_dedup
--   locks: the history rows and signals that it deletes
create function gen_durable._delete_dependents() returns trigger
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    if tg_op = 'TRUNCATE' then
        truncate gen_durable.history, gen_durable.signals;
    else
        delete from gen_durable.history t using gone where t.instance_id = gone.id;
        delete from gen_durable.signals s using gone where s.target_id = gone.id and s.consumed_at is null;
        delete from gen_durable.signals s using gone where s.target_id = gone.id and s.dedup_key is not null;
    end if;
    return null;
end $$;

create trigger instances_delete_dependents after delete on gen_durable.instances
    referencing old table as gone for each statement execute function gen_durable._delete_dependents();
create trigger instances_truncate_dependents after truncate on gen_durable.instances
    for each statement execute function gen_durable._delete_dependents();
