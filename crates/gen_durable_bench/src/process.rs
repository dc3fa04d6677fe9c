//! The memory and CPU time of processes, read from /proc. Without /proc all values are 0.

use std::fs;

/// Linux reports CPU time in hundredths of a second on all common architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// The memory of this process in megabytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    /// The peak of the memory of this process since the last call of [`forget_peak`], in megabytes.
    pub(crate) peak_mb: f64,
    /// The memory that this process uses now, in megabytes.
    pub(crate) now_mb: f64,
}

/// Resets the peak of the memory of this process, so that `Memory::peak_mb` counts from now on.
pub(crate) fn forget_peak() {
    // Ignores an error. If this process may not reset the peak of its memory, the peak since its
    // start is an upper bound.
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

/// Returns the CPU seconds that the processes with these ids have used so far.
pub(crate) fn cpu_seconds(pids: &[i32]) -> f64 {
    pids.iter()
        .filter_map(|pid| stat(*pid))
        .map(|stat| stat.own)
        .sum()
}

/// Returns the CPU seconds that all processes of this computer have used so far.
pub(crate) fn machine_cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
        .skip(1);
    // The fields of `/proc/stat` are user, nice, system, idle, iowait, irq, softirq and steal. The
    // fields user and nice already include the time of virtual guests.
    let ticks = fields
        .take(8)
        .enumerate()
        .filter(|(index, _)| !matches!(index, 3 | 4));
    ticks
        .filter_map(|(_, text)| text.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS_PER_SECOND
}

/// Returns the CPU seconds that a Postgres server has used so far: the server process, its running
/// children, and its children that have ended.
pub(crate) fn server_cpu_seconds(server: i32) -> f64 {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let children = pids.filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?));
    let running: f64 = children
        .filter(|child| child.parent == server)
        .map(|child| child.own)
        .sum();
    running + stat(server).map_or(0.0, |stat| stat.own + stat.ended_children)
}

struct Stat {
    parent: i32,
    own: f64,
    ended_children: f64,
}

fn stat(pid: i32) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name in `/proc/PID/stat` is in parentheses and may contain any character, so the
    // fields begin after the last closing parenthesis.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let seconds = |index: usize| Some(fields.get(index)?.parse::<f64>().ok()? / TICKS_PER_SECOND);
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: seconds(11)? + seconds(12)?,
        ended_children: seconds(13)? + seconds(14)?,
    })
}
