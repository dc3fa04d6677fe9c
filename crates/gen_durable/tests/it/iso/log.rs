//! The event log and its projections in every order: append × append × project, project × project, project × rebuild × swap,
//! replay × live × cancel. And two designs that are often chosen and lose events: kept here, so that nobody chooses them again.

use super::{
    CLUSTER, Guard,
    acts::{Act, Claims},
    driver::{End, Lane, others, render},
    gates, schema,
};

/// What production does around user code, with a read model that shows a repeat, a gap and a wrong order. A gate stands between reading
/// and writing: that is where others come in between.
const WORLD: &str = "
    create table S.iso_model (n bigint generated always as identity, generation int, position bigint, replayed boolean);
    create function S.iso_project(worker uuid) returns text language plpgsql as $$
    declare e record; old bigint; new bigint; gen int;
    begin
        for e in select * from S.project_open('t', 'p', 1, worker, array['e'], 10, 1000000, null, true) loop
            if e.verdict is not null then
                if e.verdict <> 'go' then return e.verdict; end if;
                old := e.scope_position; new := old; gen := e.generation;
            else
                insert into S.iso_model (generation, position, replayed) values (gen, e.pos, false);
                new := e.pos;
            end if;
        end loop;
        if new = old then return 'idle'; end if;
        perform S.iso_gate();
        if not S.project_close('t', 'p', gen, old, new, 0, worker, 0) then
            raise exception 'the cursor has moved' using errcode = 'IS001';
        end if;
        return 'moved';
    end $$;
    create function S.iso_fill(worker uuid, swaps boolean) returns text language plpgsql as $$
    declare e record; old bigint; new bigint; gen int; live bigint; kind text;
    begin
        for e in select * from S.run_open(1, 1, worker, array['e'], 10, 1000000, null, swaps) loop
            if e.verdict is not null then
                if e.verdict <> 'go' then return e.verdict; end if;
                old := e.run_position; new := old; gen := e.run_generation; live := e.scope_position; kind := e.kind;
            else
                insert into S.iso_model (generation, position, replayed) values (gen, e.pos, true);
                new := e.pos;
            end if;
        end loop;
        perform S.iso_gate();
        if new > old then
            update S.projection_runs r set position = new where r.id = 1 and r.position = old and r.status = 'running';
            if not found then raise exception 'the run has moved' using errcode = 'IS001'; end if;
        end if;
        if swaps and kind = 'shadow' and new >= live then
            if not S.run_swap(1, 1) then raise exception 'live has moved' using errcode = 'IS001'; end if;
            return 'swapped';
        end if;
        return 'filled';
    end $$;
    -- The wrong designs: a number drawn from a sequence, and a reader that goes by it.
    create sequence S.iso_seq;
    create table S.iso_log (seq bigint, xid xid8);
    create table S.iso_cursor (at bigint, seen bigint[]);
    create function S.iso_draw() returns text language sql as $$ select set_config('iso.seq', nextval('S.iso_seq')::text, true) $$;
    create function S.iso_write() returns text language plpgsql as $$
    begin
        insert into S.iso_log values (current_setting('iso.seq')::bigint, pg_current_xact_id());
        return '';
    end $$;
    create function S.iso_read(horizon boolean) returns text language plpgsql as $$
    declare found bigint[];
    begin
        found := array(select seq from S.iso_log where seq > (select at from S.iso_cursor)
            and (not horizon or xid < pg_snapshot_xmin(pg_current_snapshot())) order by seq);
        update S.iso_cursor set seen = seen || found, at = coalesce(found[cardinality(found)], at);
        return '';
    end $$;";

const CLEAR: &str = "
    truncate S.events restart identity; delete from S.event_heads; delete from S.event_looks; delete from S.projections;
    delete from S.projection_runs; delete from S.projection_failures; truncate S.iso_model restart identity;
    truncate S.iso_log; delete from S.iso_cursor; insert into S.iso_cursor values (0, '{}'); alter sequence S.iso_seq restart;
    -- The first number drawn is written to the log of Postgres, and so gives its transaction an xid; the next ones are not.
    select nextval('S.iso_seq');";

/// Three events, the first of which is projected.
const SOME: &str = "
    insert into S.event_heads values ('t');
    insert into S.events (tenant, name, payload, position) select 't', 'e', '1', n from generate_series(1, 3) n;
    insert into S.projections (tenant, projection, version, position) values ('t', 'p', 1, 1);
    insert into S.iso_model (generation, position, replayed) values (1, 1, false);";

fn run(kind: &str, generation: i32, target: &str) -> String {
    format!(
        "{SOME} insert into S.projection_runs (id, tenant, projection, kind, status, generation, target, started_at)
         overriding system value values (1, 't', 'p', '{kind}', 'running', {generation}, {target}, S.clock());"
    )
}

fn act(name: &str) -> Act {
    // Its last digit is the session's.
    let worker = "'00000000-0000-0000-0000-00000000000WHO'::uuid";
    let begin = "select S.iso_gate();";
    let sql = match name {
        "append" => {
            "select * from S.append(array['t', 't'], array['e', 'e'], '{}', array['1', '2'], '{}', '{}', '{}', 'wait')"
                .into()
        }
        "append, if free" => {
            "select * from S.append(array['t'], array['e'], '{}', array['1'], '{}', '{}', '{}', 'skip')".into()
        }
        "record" => "select S.record('t', 'e', '1')".into(),
        "place" => "select * from S.place_events(array['t'])".into(),
        "project" => format!("{begin} select S.iso_project({worker})"),
        "fill" => format!("{begin} select S.iso_fill({worker}, false)"),
        "swap" | "replay" => format!("{begin} select S.iso_fill({worker}, true)"),
        "cancel" => super::acts::run_cancel(),
        "sequence" => format!("{begin} select S.iso_draw(); select S.iso_gate(); select S.iso_write()"),
        "read by sequence" => "select S.iso_read(false)".into(),
        "read below the horizon" => "select S.iso_read(true)".into(),
        other => panic!("there is no act {other:?}"),
    };
    Act { name: name.into(), sql, claims: Claims::default() }
}

/// Everything that is committed is placed and projected, as a poll would.
const QUIET: &str = "
    select * from S.place_events(array['t'], true);
    select S.iso_project('00000000-0000-0000-0000-0000000000ff'::uuid) where exists (select from S.events);
    select S.iso_project('00000000-0000-0000-0000-0000000000ff'::uuid) where exists (select from S.events);";

/// Each line of the answer is one thing that is not as it must be.
const INVARIANTS: &str = "
    select 'the log has a gap or a repeat: ' || array_agg(position order by position)::text from S.events
    having count(*) <> coalesce(max(position), 0) or count(*) <> count(distinct position)
    union all
    select 'was never placed: ' || arrival from S.events where position is null
    union all
    select 'the read model has ' || coalesce(seen, '{}')::text || ' of ' || coalesce(logged, '{}')::text
    from (select array_agg(position order by n) seen from S.iso_model
          where generation = S.generation('t', 'p') and not (replayed and exists (select from S.projection_runs where kind = 'replay'))) a,
         (select array_agg(position order by position) logged from S.events) b
    where coalesce(seen, '{}') <> coalesce(logged, '{}')
    union all
    select 'the cursor stands at ' || p.position from S.projections p where p.position <> (select count(*) from S.events)
    union all
    select 'replayed twice: ' || position from S.iso_model where replayed group by generation, position having count(*) > 1
    union all
    select 'the run stands at ' || r.position || ' and has applied ' || count(m.n) from S.projection_runs r
    left join S.iso_model m on m.generation = r.generation and m.replayed group by r.id having count(m.n) <> r.position
    union all
    select 'the run ended twice' from S.projection_runs r where r.status = 'cancelled' and r.error is null";

const LOST: &str = "
    select 'lost: ' || seq from S.iso_log where seq <> all (select unnest(seen) from S.iso_cursor)";

struct Case {
    name: &'static str,
    world: String,
    acts: &'static [&'static str],
    /// How often an act may find that it came too late: it takes itself back, and that is right.
    after: &'static str,
    invariants: &'static str,
}

fn case(name: &'static str, world: String, acts: &'static [&'static str]) -> Case {
    Case { name, world, acts, after: QUIET, invariants: INVARIANTS }
}

fn cases() -> Vec<Case> {
    vec![
        case("append × append × project", SOME.into(), &["append", "append", "project"]),
        case("append × record × project", SOME.into(), &["append", "record", "project"]),
        case("record × append, if free × append", SOME.into(), &["record", "append, if free", "append"]),
        case("record × place × project", SOME.into(), &["record", "place", "project"]),
        case("record × record × place", String::new(), &["record", "record", "place"]),
        case("project × project", SOME.into(), &["project", "project"]),
        case("project × project × append", SOME.into(), &["project", "project", "append"]),
        case("project × rebuild × swap", run("shadow", 2, "3"), &["project", "fill", "swap"]),
        case("project × swap × append", run("shadow", 2, "3"), &["project", "swap", "append"]),
        case("swap × cancel × project", run("shadow", 2, "3"), &["swap", "cancel", "project"]),
        case("replay × live × cancel", run("replay", 1, "1"), &["replay", "project", "cancel"]),
        case("append × append × project, the first of a tenant", String::new(), &["append", "append", "project"]),
        case("replay × replay", run("replay", 1, "1"), &["replay", "replay"]),
    ]
}

/// Play every order, or until somebody says this.
async fn play(case: &Case, without: &[Guard], until: Option<&str>) -> (usize, Vec<String>) {
    let url = CLUSTER.url();
    let (schema, number, client) = schema(&url).await;
    client.batch_execute(&render(gates::GATE, &schema)).await.unwrap();
    client.batch_execute(&render(WORLD, &schema)).await.unwrap();
    for (function, guard, instead) in without {
        gates::remove(&client, &schema, function, guard, instead).await;
    }
    let mut lane = Lane::open(&url, &schema, number, 3, true).await;
    let acts: Vec<(Act, End)> = case.acts.iter().map(|name| (act(name), End::Commit)).collect();
    let setup = format!("{CLEAR}{}", case.world);
    let (mut open, mut count, mut wrong) = (vec![Vec::new()], 0, Vec::new());
    while let Some(choices) = open.pop() {
        if until.is_some_and(|complaint| wrong.iter().any(|what: &String| what.contains(complaint))) {
            break;
        }
        let played = lane.play(&setup, &acts, &choices).await;
        open.extend(others(choices.len(), &played));
        count += 1;
        let order: Vec<usize> = played.moves.iter().map(|(who, _)| *who).collect();
        let mut say = |what: String| wrong.push(format!("{} {order:?}: {what}", case.name));
        // Coming too late is no fault; anything else that is refused is.
        for (answer, (act, _)) in played.answers.iter().zip(&acts) {
            if let Some(error) = answer.error.as_ref().filter(|error| !error.starts_with("IS001")) {
                say(format!("{} failed: {error}", act.name));
            }
        }
        lane.control.batch_execute("select pg_advisory_unlock_all()").await.unwrap();
        lane.control.batch_execute(&lane.render(case.after)).await.unwrap();
        for row in lane.control.query(&lane.render(case.invariants), &[]).await.unwrap() {
            say(row.get(0));
        }
    }
    (count, wrong)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_and_its_projections_keep_their_promises_in_every_order() {
    let mut cases_played = 0;
    for case in cases() {
        let (count, wrong) = play(&case, &[], None).await;
        println!("{}: {count} interleavings", case.name);
        super::assert_nothing_wrong(count, &wrong);
        cases_played += count;
    }
    assert!(cases_played >= 300, "only {cases_played} interleavings");
}

/// What is taken out, where that shows, and what is said then.
const GUARDS: [(&str, &[Guard], usize, &str); 3] = [
    (
        "the head lock of an append",
        &[("append", "order by h.tenant for no key update);", "order by h.tenant);")],
        0,
        "append failed: 23505",
    ),
    (
        "the guarded cursor (and the lock that saves work)",
        &[
            ("project_open", "for no key update skip locked", ""),
            ("project_close", "and p.position = p_old and p.generation = p_generation", ""),
        ],
        5,
        "the read model has",
    ),
    (
        "the lock of the swap (and its guard)",
        &[("run_open", "for no key update;", ";"), ("run_swap", "and p.position = run.position", "")],
        7,
        "the read model has",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_one_of_its_guards_the_log_breaks_a_promise() {
    for (name, guard, which, complaint) in GUARDS {
        let case = &cases()[which];
        let (count, wrong) = play(case, guard, Some(complaint)).await;
        let seen = wrong.iter().filter(|what| what.contains(complaint)).count();
        println!("without {name}: interleaving {count} is wrong");
        assert!(seen > 0, "the kit does not see that {name} is missing: {wrong:?}");
    }
    // The lock in `project_open` only saves work: without it alone, the guard holds.
    let (count, wrong) = play(&cases()[5], &[("project_open", "for no key update skip locked", "")], None).await;
    super::assert_nothing_wrong(count, &wrong);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_by_a_sequence_loses_events_and_so_does_one_below_the_xid_horizon() {
    let wrong_designs: [(&str, &'static [&'static str]); 2] = [
        ("by sequence", &["sequence", "sequence", "read by sequence"]),
        ("below the xid horizon", &["sequence", "sequence", "read below the horizon"]),
    ];
    for (name, acts) in wrong_designs {
        let after = if name == "by sequence" { "select S.iso_read(false)" } else { "select S.iso_read(true)" };
        let case = Case { name: "a wrong design", world: String::new(), acts, after, invariants: LOST };
        let (count, wrong) = play(&case, &[], Some("lost: ")).await;
        println!("{name}: interleaving {count} loses an event");
        assert!(!wrong.is_empty(), "{name}: it lost nothing, in {count} interleavings");
    }
}
