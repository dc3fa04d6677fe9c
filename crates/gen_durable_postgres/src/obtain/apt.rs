//! Installs the Postgres package of Debian, or of a distribution derived from Debian. Only root can
//! install the package.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{run, say};
use crate::{Error, Options, user};

/// The path of a configuration file that exists only during the installation. By default, Debian's
/// Postgres package creates a cluster and starts it; this file prevents both.
const NO_MAIN_CLUSTER: &str = "/etc/postgresql-common/createcluster.d/gen_durable.conf";

/// Installs the Postgres programs with apt-get, without creating a cluster.
pub(super) fn install(options: &Options) -> Result<(), String> {
    let apt = options
        .places
        .program("apt-get")
        .ok_or("it is not on this machine")?;
    if !user::is_root() {
        return Err("only root may use it".to_owned());
    }
    say(options, "installing the package postgresql with apt-get");
    let switch = Path::new(NO_MAIN_CLUSTER);
    let written = switch.parent().map(fs::create_dir_all).transpose();
    let written = written.and_then(|_| fs::write(switch, "create_main_cluster = false\n"));
    written.map_err(|e| Error::io("write", switch, &e).to_string())?;
    let installed = apt_commands(&apt).iter_mut().try_for_each(run);
    let _ = fs::remove_file(switch);
    installed
}

fn apt_commands(apt: &Path) -> [Command; 2] {
    [
        &["update"][..],
        &["install", "-y", "--no-install-recommends", "postgresql"][..],
    ]
    .map(|arguments| {
        let mut command = Command::new(apt);
        command
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_apt_commands_install_postgres_without_interactive_questions() {
        let commands =
            apt_commands(Path::new("/usr/bin/apt-get")).map(|command| format!("{command:?}"));
        assert!(
            commands
                .iter()
                .all(|c| c.contains("DEBIAN_FRONTEND=\"noninteractive\"")),
            "{commands:?}"
        );
        assert!(commands.concat().contains("\"update\""), "{commands:?}");
        assert!(
            commands
                .concat()
                .contains("\"install\" \"-y\" \"--no-install-recommends\" \"postgresql\"")
        );
    }
}
