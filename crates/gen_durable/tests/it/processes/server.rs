//! A Postgres of a test's own, to be taken away and brought back.

use std::{fs, sync::LazyLock};

use gen_durable_postgres::{Cluster, Options};

use super::worker::signal;

/// A cluster of the test's own. What it holds need not survive a power cut, so it does not wait for the disk.
pub(crate) fn own_cluster() -> Cluster {
    // One at a time: the making of a cluster is work enough for the machine.
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

/// Every process of a server, stopped where it stood: connections stay open and nobody answers. Dropped: they go on.
pub(crate) struct Frozen(Vec<u32>);

impl Frozen {
    pub(crate) fn freeze(cluster: &Cluster) -> Frozen {
        let postmaster = cluster.pid();
        assert!(
            signal("STOP", &[postmaster]),
            "the server could not be stopped"
        );
        // The parent stands still, so no further child appears; one may end by itself meanwhile.
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
        // The name may hold anything; what follows its last parenthesis does not.
        let of = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        if of == Some(parent) {
            children.push(pid);
        }
    }
    children
}
