//! Shows the progress of the demo: bars on a terminal, otherwise one line per second.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::text::thousands;

const LINE_EVERY: Duration = Duration::from_secs(1);

/// The progress of the instances of one machine of the demo.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Far {
    pub(crate) seen: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
}

impl Far {
    pub(crate) fn settled(self) -> u64 {
        self.done + self.failed
    }
}

/// The progress output of the demo, on stderr.
#[derive(Debug)]
pub(crate) struct Progress {
    begun: Instant,
    bars: Option<Bars>,
    last_line: Instant,
}

#[derive(Debug)]
struct Bars {
    all: MultiProgress,
    orders: ProgressBar,
    receipts: ProgressBar,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        let now = Instant::now();
        Progress {
            begun: now,
            bars: None,
            last_line: now,
        }
    }

    /// Begins to show the progress bars of the demo, if stderr is a terminal.
    pub(crate) fn open(&mut self, orders: u64) {
        self.last_line = Instant::now();
        if !std::io::stderr().is_terminal() {
            return;
        }
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        let add = |name: &'static str, length: u64| {
            let bar = all.add(ProgressBar::new(length));
            if let Ok(style) = ProgressStyle::with_template(
                "  {prefix:9} {bar:36.green/dim} {pos:>6}/{len:6} {msg}",
            ) {
                bar.set_style(style.progress_chars("━━─"));
            }
            bar.set_prefix(name);
            bar
        };
        let (orders, receipts) = (add("orders", orders), add("receipts", 0));
        self.bars = Some(Bars {
            all,
            orders,
            receipts,
        });
    }

    /// Prints a line with the elapsed time of the demo and the text `what`.
    pub(crate) fn say(&self, what: &str) {
        let line = format!("{:>6.1} s  {what}", self.begun.elapsed().as_secs_f64());
        match &self.bars {
            Some(bars) => drop(bars.all.println(line)),
            None => eprintln!("{line}"),
        }
    }

    /// Shows the current progress of the orders and receipts of the demo.
    pub(crate) fn update(&mut self, orders: Far, receipts: Far) {
        if let Some(bars) = &self.bars {
            for (bar, far) in [(&bars.orders, orders), (&bars.receipts, receipts)] {
                let under_way = far.seen.saturating_sub(far.settled());
                let failed = if far.failed > 0 {
                    format!("{} failed permanently, ", far.failed)
                } else {
                    String::new()
                };
                bar.set_message(format!("{failed}{under_way} in progress"));
                bar.set_position(far.settled());
            }
            bars.receipts.set_length(receipts.seen);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            self.say(&format!(
                "orders {} of {} settled, receipts {} of {}",
                thousands(orders.settled()),
                thousands(orders.seen),
                thousands(receipts.settled()),
                thousands(receipts.seen),
            ));
        }
    }

    /// Removes the progress bars from the terminal and keeps the printed lines, because the demo
    /// prints the summary table next.
    pub(crate) fn close(&mut self) {
        if let Some(bars) = self.bars.take() {
            bars.orders.finish_and_clear();
            bars.receipts.finish_and_clear();
        }
    }
}
