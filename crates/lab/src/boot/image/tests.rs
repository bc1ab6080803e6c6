use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use super::*;

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

fn image(words: &[&str], root: Option<&Path>, files: &[Given]) -> Result<Image, BootError> {
    image_with(&["A=b", &format!("PATH={GUEST_PATH}")], words, root, files)
}

fn image_with(
    variables: &[&str],
    words: &[&str],
    root: Option<&Path>,
    files: &[Given],
) -> Result<Image, BootError> {
    let command: Vec<OsString> = words.iter().map(OsString::from).collect();
    let environment: Vec<OsString> = variables.iter().map(OsString::from).collect();
    Image::new(&Request {
        command: &command,
        environment: &environment,
        directory: "/".as_ref(),
        terminal: None,
        root,
        files,
    })
}

/// The files of this machine that an image has, without links on the way.
fn packed(image: &Image) -> BTreeSet<PathBuf> {
    let file = |(_, node): (_, &Node)| match &node.body {
        Body::File(Contents::Host(file)) => Some(file.canonicalize().expect("it is there")),
        _ => None,
    };
    image.tree.nodes().filter_map(file).filter(|path| path != Path::new(LOADER_CACHE)).collect()
}

/// Where the library is that glibc opens when a thread ends by `pthread_exit`: on Debian, and on Fedora.
const UNWINDERS: [&str; 2] = ["/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib64/libgcc_s.so.1"];

/// The files that the loader of this machine maps for a program: the program, its libraries and itself. With them the
/// library that glibc opens later.
fn listed(program: &Path) -> BTreeSet<PathBuf> {
    let output = Command::new(LOADER).arg("--list").arg(program).output().expect("the loader runs");
    let text = String::from_utf8(output.stdout).expect("paths are text");
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    let unwinder = UNWINDERS.iter().map(PathBuf::from).find(|path| path.exists());
    let paths = text.lines().filter_map(path).chain([program.to_owned()]).chain(unwinder);
    paths.map(|path| path.canonicalize().expect("it is there")).collect()
}

fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

#[test]
fn a_program_brings_what_its_loader_maps() {
    if !Path::new(LOADER).exists() {
        return eprintln!("this machine has no {LOADER}");
    }
    let mut seen = 0;
    for name in ["sh", "bash", "ls", "perl", "cc", "ssh", "git"] {
        let Ok(image) = image(&[name], None, &[]) else { continue };
        let program = Path::new("/").join(&image.program);
        if elf::read(&program).is_none_or(|elf| elf.needed.is_empty()) {
            continue;
        }
        assert_eq!(packed(&image), listed(&program), "{name}");
        // The guest finds it all by the names that the program has for it.
        assert!(image.tree.file(LOADER.as_ref()).is_some());
        seen += 1;
    }
    assert!(seen > 0, "this machine has no dynamic program");
}

/// Compiles a text in a directory; whether that worked.
fn compile(path: &Path, arguments: &[&str], text: &str) -> bool {
    fs::write(path.join("source.c"), text).expect("a file");
    let status = Command::new("cc").args(["source.c", "-Llib"]).args(arguments).current_dir(path).status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn libraries_are_found_beside_their_program() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().canonicalize().expect("it is there");
    fs::create_dir(path.join("lib")).expect("a directory");
    let compile = |arguments: &[&str], text: &str| compile(&path, arguments, text);
    let library = ["-shared", "-fPIC", "-Wl,-soname,libown.so.1", "-o", "lib/libown.so.1.0"];
    if !compile(&library, "int own(void) { return 0; }") {
        return eprintln!("this machine has no C compiler");
    }
    symlink("libown.so.1.0", path.join("lib/libown.so.1")).expect("a link");
    let (main, link) = ("int own(void); int main(void) { return own(); }", "-l:libown.so.1");
    for kind in ["--enable-new-dtags", "--disable-new-dtags"] {
        let option = format!("-Wl,{kind},-rpath,$ORIGIN/lib");
        assert!(compile(&["-o", "program", link, &option], main));
        let program = path.join("program");
        let image = image(&[program.to_str().expect("text")], None, &[]).expect("it is there");
        assert_eq!(packed(&image), listed(&program), "{kind}");
        let link = image.tree.get(&path.join("lib/libown.so.1")).map(|node| node.body.clone());
        assert_eq!(link, Some(Body::Symlink("libown.so.1.0".into())));

        // The same below a root: the library comes from there, the rest from this machine.
        let root = path.join("root");
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("opt/lib")).expect("directories");
        fs::copy(&program, root.join("opt/program")).expect("a copy");
        fs::copy(path.join("lib/libown.so.1.0"), root.join("opt/lib/libown.so.1")).expect("a copy");
        let image = image_in(&root, "/opt/program");
        let found = packed(&image);
        assert!(found.contains(&root.join("opt/lib/libown.so.1")), "{found:?}");
        assert!(!found.contains(&path.join("lib/libown.so.1.0")), "{found:?}");
        assert_eq!(found.len(), listed(&program).len());
    }
}

/// A loader looks where the guest's environment says, and each program has libraries of its own beside it.
#[test]
fn libraries_are_those_that_the_guest_finds() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().canonicalize().expect("it is there");
    let (main, soname) = ("int own(void); int main(void) { return own(); }", "-Wl,-soname,libown.so.1");
    fs::create_dir(path.join("lib")).expect("a directory");
    for folder in ["lib", "beside"] {
        let _ = fs::create_dir(path.join(folder));
        let out = format!("{folder}/libown.so.1");
        let text = "int own(void) { return 0; }";
        if !compile(&path, &["-shared", "-fPIC", soname, "-o", &out], text) {
            return eprintln!("this machine has no C compiler");
        }
    }
    assert!(compile(&path, &["-o", "a", "-l:libown.so.1"], main));
    let beside = ["-o", "b", "-l:libown.so.1", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/beside"];
    assert!(compile(&path, &beside, main));
    let variable = format!("LD_LIBRARY_PATH={}", path.join("lib").display());
    let files = ["a", "b"].map(|name| Given { source: path.join(name), path: path.join(name) });
    let found = packed(&image_with(&[&variable], &["sh"], None, &files).expect("it is there"));
    for folder in ["lib", "beside"] {
        assert!(found.contains(&path.join(folder).join("libown.so.1")), "{folder}: {found:?}");
    }
}

fn image_in(root: &Path, program: &str) -> Image {
    image(&[program], Some(root), &[]).expect("it is there")
}

#[test]
fn a_script_brings_its_interpreters() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().canonicalize().expect("it is there");
    let first = script(&path, "first", "#!/bin/sh -e\ntrue\n");
    let second = script(&path, "second", &format!("#! {} x\n", first.display()));
    let third = script(&path, "third", "#!/usr/bin/env -S A=b sh\n");
    let word = |path: &Path| path.to_str().expect("text").to_owned();
    let image = image(&[&word(&second)], None, &[]).expect("it is there");
    for path in [word(&second), word(&first), "/bin/sh".into()] {
        assert!(image.tree.file(path.as_ref()).is_some(), "{path}");
    }
    let image = self::image(&[&word(&third)], None, &[]).expect("it is there");
    for path in ["/usr/bin/env", "/bin/sh"] {
        assert!(image.tree.file(path.as_ref()).is_some(), "{path}");
    }
    // Two scripts that name each other end.
    let (one, other) = (path.join("one"), path.join("other"));
    script(&path, "one", &format!("#!{}\n", other.display()));
    script(&path, "other", &format!("#!{}\n", one.display()));
    assert!(self::image(&[&word(&one)], None, &[]).is_ok());
}

#[test]
fn a_root_comes_before_this_machine() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let root = root.path().canonicalize().expect("it is there");
    fs::create_dir_all(root.join("usr/bin")).expect("directories");
    symlink("usr/bin", root.join("bin")).expect("a link");
    script(&root, "usr/bin/env", "no program\n");
    let image = image(&["env"], Some(&root), &[]).expect("it is there");
    assert_eq!(image.program, Path::new("/usr/bin/env"));
    assert_eq!(packed(&image), BTreeSet::from([root.join("usr/bin/env")]));
    let bytes = |path: &str| match image.tree.file(path.as_ref()) {
        Some(Contents::Bytes(bytes)) => String::from_utf8(bytes.clone()).expect("text"),
        other => panic!("{path}: {other:?}"),
    };
    assert_eq!(bytes("/.quire/arguments"), "env\0");
    assert_eq!(bytes("/.quire/environment"), format!("A=b\0PATH={GUEST_PATH}\0"));
    assert_eq!(bytes("/.quire/directory"), "/");
    assert!(bytes("/.quire/program").ends_with("/env"));
    assert!(bytes("/etc/passwd").starts_with("root:x:0:0:"));
    for directory in ["/tmp", "/proc", "/dev", "/sys", "/root", "/lib64"] {
        let place = image.tree.resolve(directory.as_ref()).expect(directory);
        assert_eq!(image.tree.get(&place).map(|node| &node.body), Some(&Body::Directory), "{directory}");
    }
}

/// `env` searches the guest's `PATH`, which need not be the caller's.
#[test]
fn a_script_brings_what_its_env_finds() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().canonicalize().expect("it is there");
    let tool = script(&path, "a-tool-of-the-guest", "#!/bin/sh\n");
    let first = script(&path, "first", "#!/usr/bin/env a-tool-of-the-guest\n");
    let words = [first.to_str().expect("text")];
    let variable = format!("PATH={}", path.display());
    let image = image_with(&[&variable], &words, None, &[]).expect("it is there");
    assert!(image.tree.file(&tool).is_some());
    let other = self::image(&words, None, &[]).expect("it is there");
    assert!(other.tree.file(&tool).is_none());
}

#[test]
fn given_files_bring_what_they_need() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().canonicalize().expect("it is there");
    fs::create_dir(path.join("below")).expect("a directory");
    script(&path, "below/script", "#!/bin/sh\n");
    fs::write(path.join("below/text"), "#!/usr/bin/env\n").expect("a file");
    let program = script(&path, "program", "no program\n");
    let files = [
        Given { source: path.join("below"), path: "/opt/x".into() },
        Given { source: program, path: "/bin/given".into() },
    ];
    let image = image(&["given"], None, &files).expect("it is there");
    assert!(image.tree.file("/opt/x/script".as_ref()).is_some());
    assert!(image.tree.file("/bin/sh".as_ref()).is_some(), "the script's interpreter");
    assert!(image.tree.file("/usr/bin/env".as_ref()).is_none(), "a text that may not be executed");
    assert!(image.tree.file("/usr/bin/given".as_ref()).is_some() || !Path::new("/bin").is_symlink());
}

/// A directory comes into the root, or what it contains does.
#[test]
fn a_directory_is_copied_to_the_root() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir_all(folder.path().join("dir/etc")).expect("directories");
    fs::write(folder.path().join("dir/etc/own"), "own").expect("a file");
    script(folder.path(), "dir/tool", "#!/usr/bin/env\n");
    let given = |path: &str| [Given { source: folder.path().join("dir"), path: path.into() }];
    let into = image(&["sh"], None, &given("/dir")).expect("it is there");
    assert!(into.tree.file("/dir/etc/own".as_ref()).is_some());
    for root in ["/.", "/", "/bin/../.."] {
        let merged = image(&["sh"], None, &given(root)).expect("it is there");
        for path in ["/etc/own", "/tool", "/etc/passwd", "/usr/bin/env", "/bin/sh"] {
            assert!(merged.tree.file(path.as_ref()).is_some(), "{path} with {root}");
        }
        assert!(merged.tree.get("/dir".as_ref()).is_none());
    }
}

#[test]
fn files_that_the_guest_would_not_see_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let source = folder.path().join("file");
    fs::write(&source, "").expect("a file");
    let refused = |path: &str| {
        let refused = image(&["sh"], None, &[Given { source: source.clone(), path: path.into() }]);
        refused.err().map(|error| error.to_string()).unwrap_or_else(|| panic!("{path} is packed"))
    };
    for (path, directory) in [
        ("/proc/version", "/proc"),
        ("/etc/../sys", "/sys"),
        ("/dev/null", "/dev"),
        ("/.quire/program", "/.quire"),
        ("/.quire", "/.quire"),
    ] {
        let expected = format!("file: the guest has files of its own in {directory}");
        assert!(refused(path).ends_with(&expected), "{}", refused(path));
    }
    for path in ["/.", "/..", "/opt/.", "/opt/.."] {
        assert!(refused(path).ends_with("end the destination with /"), "{}", refused(path));
    }
}

/// What is merged with the root may have files in those directories too, or in their places.
#[test]
fn merged_files_that_the_guest_would_not_see_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("dir");
    let merged = |root: Option<&Path>, to: &str| {
        let given = Given { source: path.clone(), path: to.into() };
        image(&["sh"], root, &[given]).map(|_| ()).map_err(|error| error.to_string())
    };
    let made = |files: &[&str]| {
        let _ = fs::remove_dir_all(&path);
        for file in files {
            let file = path.join(file);
            fs::create_dir_all(file.parent().expect("below")).expect("directories");
            fs::write(file, "own").expect("a file");
        }
    };
    for (file, directory) in [
        ("proc/version", "/proc"),
        ("dev/null", "/dev"),
        (".quire/program", "/.quire"),
        ("proc", "/proc"),
        ("sys", "/sys"),
    ] {
        made(&["etc/own", file]);
        for root in ["/.", "/"] {
            let expected = format!("dir/{file}: the guest has files of its own in {directory}");
            let refused = merged(None, root).expect_err(file);
            assert!(refused.ends_with(&expected), "{refused}");
        }
    }
    made(&["etc/own"]);
    symlink("etc", path.join(".quire")).expect("a link");
    assert!(merged(None, "/.").expect_err("a link").contains("dir/.quire: the guest has files of its own"));
    // Empty directories lose nothing. A root is as it is, and what is given beside it is not taken for it.
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("dev")).expect("directories");
    fs::write(root.join("dev/null"), "").expect("a file");
    made(&["etc/own"]);
    fs::create_dir_all(path.join("dev/pts")).expect("directories");
    assert_eq!((merged(None, "/."), merged(Some(&root), "/.")), (Ok(()), Ok(())));
    fs::write(path.join("dev/null"), "").expect("a file");
    assert!(merged(Some(&root), "/.").is_err());
}

#[test]
fn programs_that_are_not_there_are_refused() {
    let refused = |words: &[&str]| image(words, None, &[]).err().map(|error| error.exit_code());
    assert_eq!(refused(&["no-such-program"]), Some(127));
    assert_eq!(refused(&["/no/such/program"]), Some(127));
    assert_eq!(refused(&["/tmp"]), Some(127));
    assert_eq!(refused(&["/etc/passwd"]), Some(126));
    let missing = [Given { source: "/no/such/file".into(), path: "/x".into() }];
    assert_eq!(image(&["sh"], None, &missing).err().map(|error| error.exit_code()), Some(125));
}
