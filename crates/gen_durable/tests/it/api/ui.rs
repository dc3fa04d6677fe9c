//! Compile-fail tests: the compiler must reject each program under `tests/ui`, because each has one
//! mistake.
//!
//! Lines of a program that begin with `//~` name words that the compiler's error must contain. The
//! test does not compare the whole error, because the text changes from one compiler to the next,
//! and a newer compiler must not fail these tests. The test compiles the programs against the
//! library with which it is linked itself, so that it need not build the library a second time.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The program without a mistake, which must compile.
const CONTROL: &str = "as_it_should_be.rs";
/// The maximum number of builds of a library that the test tries, the newest first. A target
/// directory keeps old builds.
const BUILDS_MAX: usize = 12;

#[test]
fn programs_that_misuse_the_api_do_not_compile_and_the_error_names_the_mistake() {
    let compiler = Compiler::that_compiles(&programs().join(CONTROL));
    let mut wrong = Vec::new();
    let mut tried = 0;
    for entry in fs::read_dir(programs()).unwrap() {
        let program = entry.unwrap().path();
        if program.ends_with(CONTROL) {
            continue;
        }
        let text = fs::read_to_string(&program).unwrap();
        let expected: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("//~ "))
            .collect();
        assert!(
            !expected.is_empty(),
            "{} has no //~ line",
            program.display()
        );
        tried += 1;
        match compiler.compile(&program) {
            Ok(()) => wrong.push(format!("{} compiles", program.display())),
            Err(message) => {
                for words in expected.iter().filter(|words| !message.contains(**words)) {
                    wrong.push(format!(
                        "the error of {} does not contain {words:?}:\n{message}",
                        program.display()
                    ));
                }
            }
        }
    }
    assert!(tried >= 10, "only {tried} programs were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui")
}

/// The compiler, and the libraries that the programs use.
struct Compiler {
    rustc: OsString,
    deps: PathBuf,
    gen_durable: PathBuf,
    serde: PathBuf,
}

impl Compiler {
    /// Finds a pair of builds in the target directory with which the control program compiles.
    fn that_compiles(control: &Path) -> Compiler {
        let deps = std::env::current_exe()
            .unwrap()
            .parent()
            .unwrap()
            .to_owned();
        // The test uses the compiler in the directory of the cargo that runs the test, if that
        // directory is known, and otherwise the compiler in the path.
        let beside_cargo =
            std::env::var_os("CARGO").map(|cargo| Path::new(&cargo).with_file_name("rustc"));
        let rustc = beside_cargo
            .filter(|path| path.exists())
            .map_or("rustc".into(), PathBuf::into_os_string);
        let mut message = String::new();
        for gen_durable in builds_of("gen_durable", &deps) {
            for serde in builds_of("serde", &deps) {
                let compiler = Compiler {
                    rustc: rustc.clone(),
                    deps: deps.clone(),
                    gen_durable: gen_durable.clone(),
                    serde,
                };
                match compiler.compile(control) {
                    Ok(()) => return compiler,
                    Err(error) => message = error,
                }
            }
        }
        panic!(
            "no build of gen_durable and serde in {} compiles {}:\n{message}",
            deps.display(),
            control.display()
        );
    }

    fn compile(&self, program: &Path) -> Result<(), String> {
        let with = |name: &str, library: &Path| format!("{name}={}", library.display());
        let compiled = Command::new(&self.rustc)
            .args([
                "--edition",
                "2024",
                "--emit",
                "metadata",
                "--color",
                "never",
            ])
            .args([
                "--crate-name",
                "ui",
                "--out-dir",
                env!("CARGO_TARGET_TMPDIR"),
            ])
            .arg("-L")
            .arg(format!("dependency={}", self.deps.display()))
            .args([
                "--extern",
                &with("gen_durable", &self.gen_durable),
                "--extern",
                &with("serde", &self.serde),
            ])
            .arg(program)
            .output()
            .unwrap();
        if compiled.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&compiled.stderr).into_owned())
        }
    }
}

/// Returns the builds of a library in the target directory, the newest first.
fn builds_of(library: &str, deps: &Path) -> Vec<PathBuf> {
    let prefix = format!("lib{library}-");
    let mut builds: Vec<PathBuf> = fs::read_dir(deps)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "rlib")
        })
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        })
        .collect();
    builds.sort_by_key(|path| {
        std::cmp::Reverse(fs::metadata(path).and_then(|file| file.modified()).ok())
    });
    builds.truncate(BUILDS_MAX);
    builds
}
