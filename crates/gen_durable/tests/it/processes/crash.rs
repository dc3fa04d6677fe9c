//! Steps that take their process with them.

use gen_durable::MINUTE;

use super::{
    machines::{Five, Gated, Killer, Way},
    place::{Place, until},
};

#[tokio::test]
async fn a_step_that_kills_its_process_fails_after_three_deaths_and_all_others_settle() {
    let place = Place::new().await;
    let innocents = 150;
    let killer = place.client.enqueue(Killer).await.unwrap().id;
    place.client.enqueue_all((0..innocents).map(|_| Five::default())).await.unwrap();
    let mut plan = place.plan();
    plan.pause_ms = 20;
    let mut workers: Vec<_> = (0..4).map(|_| plan.start()).collect();
    let mut deaths = 0;
    until("everything has settled", async || {
        for worker in &mut workers {
            if worker.ended().is_some() {
                deaths += 1;
                // A supervisor does not ask why.
                *worker = plan.start();
            }
        }
        assert!(deaths <= 3, "{deaths} deaths");
        place.count("select count(*) from %.instances where finished_at is null").await == 0
    })
    .await;
    assert_eq!(deaths, 3);
    let ended =
        place.sql("select fsm, status, last_error, count(*) from %.instances group by 1, 2, 3 order by 1").await;
    let died = "its process died 3 times".to_owned();
    assert_eq!(ended[0], ["five".into(), "done".into(), "null".into(), innocents.to_string()]);
    assert_eq!(ended[1..], [["killer".into(), "failed".into(), died.clone(), "1".to_owned()]]);
    let settled = place.client.settled(killer, std::time::Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(settled.result.unwrap_err().message, died);
}

#[tokio::test]
async fn two_suspects_never_share_a_process() {
    let place = Place::new().await;
    // Two that were each there when a process died, twice; one of them did it.
    place.client.enqueue(Gated::new("gate", Way::Done)).await.unwrap();
    place.client.enqueue(Killer).await.unwrap();
    place.sql("update %.instances set crash_count = 2, attempt = 2").await;
    let mut worker = place.plan().start();
    place.until_done("begin", 1).await;
    // Others go on beside the suspect, so the worker has looked for more; the second suspect has not begun.
    let other = place.client.enqueue(Five::default()).await.unwrap().id;
    place.client.settled(other, MINUTE).await.unwrap().unwrap();
    assert!(place.done("begin").iter().all(|effect| effect.step != "run"), "two suspects run beside each other");
    // It does when the first has ended, so its death is its own.
    place.open("gate", 2);
    place.until_count("select count(*) from %.instances where status = 'done'", 2).await;
    worker.ends().await;
    let _next = place.plan().start();
    place.until_all_settled().await;
    let ended = place.sql("select fsm, status, attempt from %.instances where fsm <> 'five' order by id").await;
    assert_eq!(ended, [["gated", "done", "2"], ["killer", "failed", "3"]]);
}
