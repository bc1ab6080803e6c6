use super::hash_of;

#[test]
fn a_change_of_named_code_alone_changes_the_hash() {
    let before = [("a/b.rs", 1), ("a/c.rs", 2), ("d.rs", 3)];
    let changed = [("a/b.rs", 1), ("a/c.rs", 9), ("d.rs", 3)];
    assert_eq!(hash_of(&before, &["d.rs"]), hash_of(&changed, &["d.rs"]));
    assert_ne!(hash_of(&before, &["a/"]), hash_of(&changed, &["a/"]));
    assert_eq!(hash_of(&before, &["e/"]), "", "no source, no hash");
}
