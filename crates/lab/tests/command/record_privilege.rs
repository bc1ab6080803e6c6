//! Programs whose files grant a privilege: what a recording keeps from them is said.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::recorder::{ORDINARY_USER, Recording, copy_program, is_root, tiers};

/// A set-uid program of another user that ends at once with this option: made here, or one that the system has.
fn set_uid_program(directory: &Path) -> Option<(PathBuf, &'static str)> {
    if is_root() {
        let (program, copy) = ("/usr/bin/id", directory.join("granted"));
        if !Path::new(program).exists() {
            return None;
        }
        copy_program(program, &copy);
        chown(&copy, Some(ORDINARY_USER), Some(ORDINARY_USER)).expect("root may");
        // Behind the change of owner, which takes the bit away.
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o4755)).expect("root may");
        return Some((copy, "-u"));
    }
    let system = ["/usr/bin/passwd", "/usr/bin/mount", "/bin/mount", "/usr/bin/su", "/bin/su"];
    let is_set_uid = |path: &&str| {
        let metadata = std::fs::metadata(path);
        metadata.is_ok_and(|metadata| metadata.mode() & 0o4000 != 0 && metadata.uid() == 0)
    };
    system.into_iter().find(is_set_uid).map(|path| (path.into(), "--version"))
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).expect("the directory is ours");
    directory
}

#[test]
fn a_set_uid_program_is_named_before_it_starts() {
    let directory = directory();
    let Some((program, option)) = set_uid_program(directory.path()) else { return };
    let program = program.to_str().expect("the path is text");
    for tier in tiers() {
        let mut run = Recording::start(&["--quiet", "--tier", tier], &[program, option], None, |_| {});
        run.end();
        let said = run.stderr();
        let first = said.lines().next().unwrap_or_default();
        assert!(first.contains(program) && first.contains("is set-uid"), "tier {tier}: {said}");
        let cure = if tier == "user" { "record as root" } else { "--tier user" };
        assert!(first.contains(cure), "tier {tier}: {said}");
        if tier == "user" && is_root() {
            assert_eq!(run.text("stdout").trim(), "0", "the kernel withholds it");
        }
    }
}

#[test]
fn a_set_uid_program_that_a_child_starts_is_named_in_the_summary() {
    let directory = directory();
    let Some((program, option)) = set_uid_program(directory.path()) else { return };
    let name = program.file_name().expect("it has a name").to_str().expect("it is text").to_owned();
    let script = format!("true; {} {option}; {} {option}; exit 3", program.display(), program.display());
    for tier in tiers().into_iter().filter(|tier| *tier == "user") {
        let mut run = Recording::of_script(&["--tier", tier], &script);
        assert_eq!(run.end().code(), Some(3), "{}", run.stderr());
        let said = run.stderr();
        assert_eq!(said.matches("ran without the privilege").count(), 1, "{said}");
        let line = said.lines().find(|line| line.contains("ran without")).unwrap_or_default();
        assert_eq!(line.matches(name.as_str()).count(), 1, "{said}");
    }
}

#[test]
fn an_ordinary_program_has_nothing_to_be_said_of() {
    for tier in tiers() {
        let mut run = Recording::of_script(&["--quiet", "--tier", tier], "true; /bin/true");
        assert!(run.end().success());
        assert_eq!(run.stderr(), "");
    }
}
