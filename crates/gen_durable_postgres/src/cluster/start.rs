//! Which cluster to start: a fresh one, a kept one, or none because it runs already.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use super::{Cluster, Lifetime};
use crate::data::{self, Running};
use crate::find::Binaries;
use crate::obtain;
use crate::place::{self, Place};
use crate::user::{self, Account};
use crate::watch::poll_until;
use crate::{Error, Options, Result, url};

/// What a look at a kept cluster shows.
enum Seen {
    Free,
    Alive(Running),
}

impl Cluster {
    pub(crate) fn start_temporary(options: Options) -> Result<Self> {
        let binaries = obtain::find_or_obtain(&options, None)?;
        let account = user::server_account(None)?;
        let (place, owner) = Place::temporary(account.as_ref())?;
        let mut cluster = Self::stopped(place, binaries, options, account, Lifetime::Temporary);
        // From here on dropping the cluster removes the directory, whatever fails.
        cluster.owner = Some(owner);
        cluster.launch()?;
        Ok(cluster)
    }

    pub(crate) fn start_kept(options: Options, dir: &Path) -> Result<Self> {
        let place = Place::kept(dir)?;
        // Those who start at once take turns: a later one finds the first one's server, and none
        // takes another's look at the locks for a living owner.
        let turn_path = place.base.join("lock");
        let turn = place::open_lock(&turn_path)?;
        turn.lock().map_err(|e| Error::io("lock", &turn_path, &e))?;

        let data_owner = fs::metadata(&place.data).ok().map(|meta| meta.uid());
        refuse_other_owner(&place, data_owner)?;
        let made_by = data::version(&place.data);
        let binaries = obtain::find_or_obtain(&options, made_by)?;
        refuse_other_version(&place, &binaries, made_by)?;
        let account = user::server_account(data_owner)?;
        place.check_reachable(account.as_ref())?;
        let mut cluster = Self::stopped(place, binaries, options, account, Lifetime::Kept);

        let owner = place::open_lock(&cluster.place.owner())?;
        let deadline = Instant::now() + cluster.options.start_timeout;
        match poll_until(deadline, || cluster.look(&owner).transpose()) {
            Some(Ok(Seen::Free)) => {}
            Some(Ok(Seen::Alive(running))) => {
                cluster.running = running;
                cluster.lifetime = Lifetime::Joined;
                return Ok(cluster);
            }
            Some(Err(error)) => return Err(error),
            None => {
                return Err(Error::new(format!(
                    "the cluster in {} is held by another process that neither serves nor ends: stop it, or keep the \
                     cluster elsewhere",
                    cluster.place.base.display()
                )));
            }
        }
        cluster.owner = Some(owner);
        cluster.launch()?;
        Ok(cluster)
    }

    /// One look at a kept cluster: free to start, alive to join, or `None` while that is not
    /// decided yet. The owner's lock is ours when it is free.
    fn look(&self, owner: &File) -> Result<Option<Seen>> {
        let owner_gone = place::try_lock(owner, &self.place.owner())?;
        // A lock of the log is seen even where process ids are not, as from another container.
        let log_free = place::try_lock(&self.place.open_log()?, &self.place.log())?;
        let seen = match data::running(&self.place.data) {
            None if owner_gone && log_free => return Ok(Some(Seen::Free)),
            // A server whose owner died is about to stop. One that never had an owner was started
            // by hand.
            Some(running) if running.status == "ready" && (log_free || !owner_gone) => {
                Some(Seen::Alive(running))
            }
            _ => None,
        };
        // Not ours after all, or not yet.
        let _ = owner.unlock();
        Ok(seen)
    }

    fn stopped(
        place: Place,
        binaries: Binaries,
        options: Options,
        account: Option<Account>,
        lifetime: Lifetime,
    ) -> Self {
        let socket_dir = place.run.clone();
        let running = Running {
            pid: 0,
            port: url::DEFAULT_PORT,
            socket_dir,
            listens: false,
            status: String::new(),
        };
        Self {
            place,
            binaries,
            options,
            account,
            owner: None,
            server: None,
            running,
            lifetime,
        }
    }
}

fn refuse_other_owner(place: &Place, data_owner: Option<u32>) -> Result<()> {
    match data_owner {
        Some(uid) if uid != user::own_uid() && !user::is_root() => Err(Error::new(format!(
            "the data in {} belongs to user id {uid}, and only that user can run a server on it: run as that user, or \
             use another directory",
            place.data.display()
        ))),
        _ => Ok(()),
    }
}

fn refuse_other_version(place: &Place, binaries: &Binaries, made_by: Option<u32>) -> Result<()> {
    match made_by {
        Some(version) if version != binaries.version => Err(Error::new(format!(
            "the data in {} is of Postgres {version}, and the programs in {} are of Postgres {}: point PG_BIN at the \
             programs of version {version}, or dump the data with them and restore it into a new directory, or use \
             another directory",
            place.data.display(),
            binaries.dir.display(),
            binaries.version,
        ))),
        _ => Ok(()),
    }
}
