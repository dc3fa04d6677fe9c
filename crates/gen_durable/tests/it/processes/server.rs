//! A private Postgres that a test can suspend, crash and restart.

use std::{fs, sync::LazyLock};

use gen_durable_postgres::{Cluster, Options};

use super::worker::signal;

/// Creates a private cluster. Its data need not survive a power failure, so the server does not
/// wait for the disk.
pub(crate) fn own_cluster() -> Cluster {
    // Create one cluster at a time: initdb uses much CPU.
    static MAKING: LazyLock<std::sync::Mutex<()>> = LazyLock::new(Default::default);
    let _one_at_a_time = MAKING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    Options::for_tests()
        .fsync(false)
        .setting("shared_buffers", "16MB")
        .temporary()
        .unwrap()
}

/// Suspends every process of a server with SIGSTOP: connections stay open, and the server does not
/// answer. Dropping it resumes the processes.
pub(crate) struct Frozen(Vec<u32>);

impl Frozen {
    pub(crate) fn freeze(cluster: &Cluster) -> Frozen {
        let postmaster = cluster.pid();
        assert!(
            signal("STOP", &[postmaster]),
            "could not send SIGSTOP to the server"
        );
        // The postmaster is suspended, so it forks no further child process. A child process may
        // still end meanwhile.
        let mut frozen = Frozen(children(postmaster));
        signal("STOP", &frozen.0);
        frozen.0.push(postmaster);
        frozen
    }

    pub(crate) fn thaw(self) {}
}

impl Drop for Frozen {
    fn drop(&mut self) {
        signal("CONT", &self.0);
    }
}

fn children(parent: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        // The process name may contain any character, so parse the fields after the last
        // parenthesis.
        let parent_pid = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        if parent_pid == Some(parent) {
            children.push(pid);
        }
    }
    children
}
