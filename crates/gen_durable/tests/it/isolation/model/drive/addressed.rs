//! The acts that address an instance which exists already: signal, cancel, reap, release, retry.

use gen_durable::client::Delivery;

use super::{ActResult, Harness, INBOX_MAX, REAP, RELEASE_CLAIMS, agree, answer_of, of_kind};
use crate::isolation::model::{
    generate::{Among, Choice},
    robot::{A, B, KINDS, SentSignal, To},
    rows::{Answer, CRASHES_MAX, Claim},
};

impl Harness {
    /// Returns the instance or key that `choice` selects among the instances that exist now, and
    /// the kind of machine with which the act addresses it.
    pub(super) fn resolve(&self, choice: &Choice) -> (To, usize) {
        let rows = &self.model.rows;
        let (to, n, wrong) = match choice {
            Choice::Key {
                key,
                tenant,
                wrong_machine,
            } => {
                let key = format!("k{key}");
                let holder = self.model.holder(tenant, &key);
                (
                    To::Key {
                        key,
                        tenant: (*tenant).to_owned(),
                    },
                    holder,
                    *wrong_machine,
                )
            }
            Choice::One {
                pool,
                which,
                wrong_machine,
            } => {
                let fits = |among: Among| -> Vec<u32> {
                    let fit = rows.iter().filter(|(_, row)| match among {
                        Among::Waiting => row.status == "awaiting_signal",
                        Among::Live => row.finished.is_none(),
                        Among::All => true,
                        Among::Missing => false,
                    });
                    fit.map(|(n, _)| *n).collect()
                };
                let mut able = fits(*pool);
                if able.is_empty() && *pool == Among::Waiting {
                    able = fits(Among::Live);
                }
                let n = able.get(which % able.len().max(1)).copied();
                let id = n
                    .and_then(|n| self.model.ids.get(&n))
                    .copied()
                    .unwrap_or(i64::MAX);
                (To::Instance(n.unwrap_or_default(), id), n, *wrong_machine)
            }
        };
        let kind = n.and_then(|n| rows.get(&n)).map_or(0, |row| row.kind);
        (to, (kind + usize::from(wrong)) % KINDS.len())
    }

    pub(in crate::isolation::model) fn new_signal(
        &mut self,
        choice: &Choice,
        name: &'static str,
    ) -> SentSignal {
        let (to, kind) = self.resolve(choice);
        SentSignal {
            n: self.number(),
            to,
            kind,
            name,
        }
    }

    pub(super) async fn signal(
        &mut self,
        to: &Choice,
        name: &'static str,
        dedup: Option<u8>,
        cap: Option<i32>,
    ) -> ActResult {
        let signal = self.new_signal(to, name);
        let dedup = dedup.map(|key| format!("d{key}"));
        let SentSignal { n, kind, .. } = signal;
        let answer = match cap {
            // A case sends too few signals to reach the inbox limit of the client, so the test
            // calls the SQL function, which accepts a smaller limit.
            Some(cap) => {
                let (id, tenant, key) = match &signal.to {
                    To::Instance(_, id) => (Some(*id), String::new(), None),
                    To::Key { key, tenant } => (None, tenant.clone(), Some(key.clone())),
                };
                let text = "select gen_durable.signal($1, $2, $3, array[$4], $5, jsonb_build_object('n', $6::int), $7, $8)";
                let number = i32::try_from(n).unwrap();
                let rows = self
                    .ask(
                        text,
                        &[
                            &id,
                            &tenant,
                            &key,
                            &KINDS[kind],
                            &name,
                            &number,
                            &dedup,
                            &cap,
                        ],
                    )
                    .await?;
                match rows[0].get(0) {
                    "delivered" => Answer::Done,
                    "duplicate" => Answer::Duplicate,
                    "inbox_full" => Answer::Full,
                    "no_target" => Answer::NoTarget,
                    other => return Err(format!("unknown answer of a signal: {other:?}")),
                }
            }
            None => of_kind!(kind, K => {
                let address = signal.to.address::<K>();
                let sent = match (name, &dedup) {
                    ("a", None) => self.lab.signal(address, A::<K> { n }).await,
                    ("a", Some(key)) => self.lab.signal(address, A::<K> { n }).once(key).await,
                    (_, None) => self.lab.signal(address, B::<K> { n }).await,
                    (_, Some(key)) => self.lab.signal(address, B::<K> { n }).once(key).await,
                };
                answer_of(sent.map(Delivery::is_new), Answer::Duplicate)?
            }),
        };
        let cap = cap.map_or(INBOX_MAX, |cap| usize::try_from(cap).unwrap());
        let expected = self.model.signal(&signal, dedup.as_deref(), cap);
        agree(
            &format!("{signal:?}, dedup {dedup:?}, at most {cap}"),
            answer,
            expected,
        )
    }

    pub(super) async fn cancel(&mut self, to: &Choice, subtree: bool) -> ActResult {
        let (to, kind) = self.resolve(to);
        let why = format!("enough {}", self.number());
        let answer = of_kind!(kind, K => {
            let address = to.address::<K>();
            answer_of(match subtree {
                true => self.lab.cancel(address, &why).subtree().await,
                false => self.lab.cancel(address, &why).await,
            }, Answer::TooLate)?
        });
        let expected = self.model.cancel(&to, kind, subtree, &why);
        agree(
            &format!("cancel {to:?} as {:?}, subtree {subtree}", KINDS[kind]),
            answer,
            expected,
        )
    }

    pub(super) async fn reap(&mut self, limit: i32) -> ActResult {
        let holder =
            "select locked_by::text from gen_durable.instances where status = 'executing' limit 1";
        let rows = self.ask(holder, &[]).await?;
        let Some(worker) = rows.first().map(|row| row.get::<_, String>(0)) else {
            return Ok("nothing to reap".into());
        };
        let expired = "insert into gen_durable.workers (id, lease_expires_at, host, pid, queues, machines)
            values ($1::text::uuid, statement_timestamp() - interval '1 s', 'expired', 0, '{}', '{}') on conflict do nothing";
        self.ask(expired, &[&worker]).await?;
        self.ask(
            "update gen_durable.instances set begun_epoch = claim_epoch where status = 'executing'",
            &[],
        )
        .await?;
        let crashes = i16::try_from(CRASHES_MAX).unwrap();
        let reaped = self
            .ask(REAP, &[&worker, &i64::from(limit), &i32::from(crashes)])
            .await?;
        agree(
            "reaped",
            reaped.len(),
            self.model.reap(usize::try_from(limit).unwrap()),
        )
    }

    /// Releases the claim of a running step, as a worker does that cannot run the step. The step
    /// continues, and the commit will reject its step result as stale.
    pub(super) async fn release_claim(&mut self, which: usize) -> ActResult {
        let Claim { n, epoch, .. } = self.running[which % self.running.len()].claim;
        let id = self.model.ids[&n];
        let released = self.ask(RELEASE_CLAIMS, &[&vec![id], &vec![epoch]]).await?;
        agree(
            &format!("release the claim of #{n} at epoch {epoch}"),
            released.len() == 1,
            self.model.release_claim(n, epoch),
        )
    }

    pub(super) async fn retry(&mut self, which: usize, other_step: bool) -> ActResult {
        let over = |n: &&u32| self.model.rows[n].finished.is_some();
        let mut able: Vec<u32> = self.model.rows.keys().filter(over).copied().collect();
        if able.is_empty() {
            able = self.model.rows.keys().copied().collect();
        }
        let n = able
            .get(which % able.len().max(1))
            .copied()
            .unwrap_or_default();
        let id = self.model.ids.get(&n).copied().unwrap_or(i64::MAX);
        let mark = other_step.then(|| self.number());
        let data = mark.map(|n| format!("{{\"n\":{n}}}"));
        let mut request = self.lab.operate().retry(id);
        if let Some(data) = data {
            request = request.at_step("went").with_data(data);
        }
        let answer = match request.await {
            Ok(()) => Ok(()),
            Err(error) if error.is_not_found() => Err("not found"),
            Err(error) if error.is_invalid() => Err("invalid"),
            Err(error) => return Err(crate::support::chain(&error)),
        };
        agree(
            &format!(
                "retry #{n} ({}), other step {mark:?}",
                self.model.kind_name(n)
            ),
            answer,
            self.model.retry(n, mark),
        )
    }
}
