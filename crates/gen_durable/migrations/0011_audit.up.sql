-- 0011: what people did, and tried to do, through the dashboard and the command line.

-- Written before an act begins, and again when it is over: no act without a record, whatever dies in between. One whose end is
-- missing may have been done or not. It is bounded: whoever writes a new one takes the oldest away.
create table gen_durable.audit (
    id        bigint generated always as identity primary key,
    at        timestamptz not null default gen_durable.clock(),
    who       text not null,                         -- as whoever let them in knows them
    place     text,                                  -- the address that they came from, if that is known
    via       text not null,                         -- dashboard, command
    act       text not null,
    subject   text not null,                         -- on what
    went_well boolean,
    outcome   text,
    ended_at  timestamptz,
    constraint audit_has_an_end check ((ended_at is null) = (outcome is null) and (outcome is null) = (went_well is null))
);
