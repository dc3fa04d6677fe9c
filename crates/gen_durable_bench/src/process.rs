//! What a process costs, from /proc. On a system without it: nothing is known.

use std::fs;

/// The kernel counts CPU time in hundredths of a second on every Linux there is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Memory of this process, in megabytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    /// The most it was since [`forget_peak`].
    pub(crate) peak_mb: f64,
    /// What it is.
    pub(crate) now_mb: f64,
}

/// From here on the peak is measured anew.
pub(crate) fn forget_peak() {
    // Where this is not allowed the peak is that of the whole run, which is no less than what is asked for.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

pub(crate) fn memory() -> Memory {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kilobytes = line.and_then(|rest| {
            rest.trim_start_matches(':')
                .trim()
                .trim_end_matches(" kB")
                .parse()
                .ok()
        });
        kilobytes.unwrap_or(0.0) / 1024.0
    };
    Memory {
        peak_mb: field("VmHWM"),
        now_mb: field("VmRSS"),
    }
}

/// Seconds of CPU that these processes have used so far.
pub(crate) fn cpu_seconds(pids: &[i32]) -> f64 {
    pids.iter()
        .filter_map(|pid| stat(*pid))
        .map(|stat| stat.own)
        .sum()
}

/// Seconds of CPU that everything on this machine has used so far.
pub(crate) fn machine_cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
        .skip(1);
    // user nice system idle iowait irq softirq steal; what guests use is counted in the first two already.
    let ticks = fields
        .take(8)
        .enumerate()
        .filter(|(index, _)| !matches!(index, 3 | 4));
    ticks
        .filter_map(|(_, text)| text.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS_PER_SECOND
}

/// Seconds of CPU that a server has used so far: it, its children that live, and those that have ended.
pub(crate) fn server_cpu_seconds(server: i32) -> f64 {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let children = pids.filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?));
    let living: f64 = children
        .filter(|child| child.parent == server)
        .map(|child| child.own)
        .sum();
    living + stat(server).map_or(0.0, |stat| stat.own + stat.ended_children)
}

struct Stat {
    parent: i32,
    own: f64,
    ended_children: f64,
}

fn stat(pid: i32) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may hold anything; what counts comes after the last one.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let seconds = |index: usize| Some(fields.get(index)?.parse::<f64>().ok()? / TICKS_PER_SECOND);
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: seconds(11)? + seconds(12)?,
        ended_children: seconds(13)? + seconds(14)?,
    })
}
