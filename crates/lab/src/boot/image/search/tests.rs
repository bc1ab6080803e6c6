use super::*;

fn object(path: &str, rpath: Option<&str>, runpath: Option<&str>, needed_by: Option<usize>) -> Loaded {
    let elf = Elf { rpath: rpath.map(Into::into), runpath: runpath.map(Into::into), ..Elf::default() };
    Loaded { path: path.into(), elf, needed_by }
}

fn searched(loaded: &[Loaded], by: usize) -> Vec<String> {
    let found = searched_by(loaded, by, &["/env".into()]);
    found.into_iter().map(|path| path.to_str().expect("text").to_owned()).collect()
}

#[test]
fn directories_come_in_the_order_of_the_loader() {
    let loaded = [
        object("/opt/bin/program", Some("$ORIGIN/../lib:/r"), None, None),
        object("/opt/lib/one.so", None, None, Some(0)),
        object("/opt/lib/two.so", Some("/ignored"), Some("${ORIGIN}/own"), Some(1)),
        object("/opt/lib/three.so", Some("/three/$LIB"), None, Some(2)),
    ];
    // The program's list counts for what libraries need too.
    assert_eq!(searched(&loaded, 0), ["/opt/bin/../lib", "/r", "/env"]);
    assert_eq!(searched(&loaded, 1), ["/opt/bin/../lib", "/r", "/env"]);
    // A list of the newer kind comes after the environment, and switches the older kind off.
    assert_eq!(searched(&loaded, 2), ["/env", "/opt/lib/own"]);
    assert_eq!(searched(&loaded, 3), ["/three/lib/x86_64-linux-gnu", "/opt/bin/../lib", "/r", "/env"]);
}

#[test]
fn the_configuration_of_a_root_is_read() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let place = root.path().join("etc/ld.so.conf.d");
    fs::create_dir_all(&place).expect("directories");
    fs::write(
        root.path().join("etc/ld.so.conf"),
        "# here\n/first # why\ninclude ld.so.conf.d/*.conf\n/last\n",
    )
    .expect("a file");
    fs::write(place.join("b.conf"), "/b\ninclude /etc/ld.so.conf\n").expect("a file");
    fs::write(place.join("a.conf"), "/a\n").expect("a file");
    fs::write(place.join("c.other"), "/c\n").expect("a file");
    let mut tree = Tree::default();
    tree.copy(root.path(), "/".as_ref()).expect("it can be read");
    let found = Files::Guest(&tree).configured();
    assert!(found.starts_with(&["/first".into(), "/a".into(), "/b".into()]), "{found:?}");
    assert!(found.ends_with(&["/last".into()]) && !found.contains(&"/c".into()), "{found:?}");
}
