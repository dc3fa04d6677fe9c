//! A Postgres server of one test, which the test can suspend, crash and restart.

use std::{fs, sync::LazyLock};

use gen_durable_postgres::{Cluster, Options};

use super::worker::signal;

/// Creates a Postgres server for one test. Its data need not survive a power failure, so the server
/// does not wait for the disk.
pub(crate) fn own_cluster() -> Cluster {
    // The tests create one server at a time, because initdb uses much CPU.
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

/// The processes of a Postgres server, suspended with SIGSTOP: connections stay open, and the
/// server does not answer. Dropping this value resumes the processes.
pub(crate) struct Frozen(Vec<u32>);

impl Frozen {
    pub(crate) fn freeze(cluster: &Cluster) -> Frozen {
        let postmaster = cluster.pid();
        assert!(
            signal("STOP", &[postmaster]),
            "could not send SIGSTOP to the server"
        );
        // The test has suspended the postmaster, so it forks no further child process. A child
        // process may end before the test suspends it.
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
        // The process name in `/proc/<pid>/stat` may contain any character, so the function parses
        // the fields after the last parenthesis.
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
