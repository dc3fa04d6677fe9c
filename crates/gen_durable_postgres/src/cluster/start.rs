//! Starts a cluster: creates a new cluster, starts an existing cluster, or joins a cluster with a
//! server that already runs.

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

/// The state of an existing cluster: free to start, or with a server that already runs.
enum KeptState {
    Free,
    Running(Running),
}

impl Cluster {
    pub(crate) fn start_temporary(options: Options) -> Result<Self> {
        let binaries = obtain::find_or_obtain(&options, None)?;
        let account = user::server_account(None)?;
        let (place, owner) = Place::temporary(account.as_ref())?;
        let mut cluster = Self::stopped(place, binaries, options, account, Lifetime::Temporary);
        // Sets the owner before the launch, so that the drop of `cluster` removes its directory
        // even if the launch fails.
        cluster.owner = Some(owner);
        cluster.launch()?;
        Ok(cluster)
    }

    pub(crate) fn start_kept(options: Options, dir: &Path) -> Result<Self> {
        let place = Place::kept(dir)?;
        // The lock on the file `lock` serializes concurrent starts of the same cluster. A later
        // start then finds the server of the first start. Without this lock, a start could mistake
        // the short lock of another start on the owner file for a running owner.
        let lock_path = place.base.join("lock");
        let start_lock = place::open_lock(&lock_path)?;
        start_lock
            .lock()
            .map_err(|e| Error::io("lock", &lock_path, &e))?;

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
        match poll_until(deadline, || cluster.kept_state(&owner).transpose()) {
            Some(Ok(KeptState::Free)) => {}
            Some(Ok(KeptState::Running(running))) => {
                cluster.running = running;
                cluster.lifetime = Lifetime::Joined;
                return Ok(cluster);
            }
            Some(Err(error)) => return Err(error),
            None => {
                return Err(Error::new(format!(
                    "the cluster in {} is locked by another process whose server is not ready and does not exit: stop it, or keep the \
                     cluster elsewhere",
                    cluster.place.base.display()
                )));
            }
        }
        cluster.owner = Some(owner);
        cluster.launch()?;
        Ok(cluster)
    }

    /// Returns the state of an existing cluster: free to start, or running and ready to join.
    /// Returns `None` if the cluster is not in one of these states yet. If the cluster is free,
    /// this call leaves the owner file `owner` locked.
    fn kept_state(&self, owner: &File) -> Result<Option<KeptState>> {
        let owner_gone = place::try_lock(owner, &self.place.owner())?;
        // Tests the lock on the server log, because every process of the server holds this lock. A
        // process in another container sees the lock even if it cannot see the process ids.
        let log_free = place::try_lock(&self.place.open_log()?, &self.place.log())?;
        let state = match data::running(&self.place.data) {
            None if owner_gone && log_free => return Ok(Some(KeptState::Free)),
            // Does not join a server after its owner process has ended, because the server is about
            // to stop. Joins a server with an unlocked log, because a user has started this server
            // by hand and it never had an owner.
            Some(running) if running.status == "ready" && (log_free || !owner_gone) => {
                Some(KeptState::Running(running))
            }
            _ => None,
        };
        // Releases the lock on the owner file, because the cluster is not free to start.
        let _ = owner.unlock();
        Ok(state)
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
