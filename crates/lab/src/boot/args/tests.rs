use super::*;

#[test]
fn files_have_destinations() {
    let parse = |text: &str| parse_file(text.into()).map(|given| (given.source, given.path));
    let pair = |source: &str, path: &str| Ok((PathBuf::from(source), PathBuf::from(path)));
    assert_eq!(parse("/a/b"), pair("/a/b", "/a/b"));
    assert_eq!(parse("/a/b:/c"), pair("/a/b", "/c"));
    assert_eq!(parse("a/b:/c/"), pair("a/b", "/c/b"));
    assert_eq!(parse("a:b:/c"), pair("a:b", "/c"));
    for dir in ["a", "a/", "a/."] {
        assert_eq!(parse(&format!("{dir}:/")), pair(dir, "/a"), "as `cp -r {dir} /`");
    }
    assert_eq!(parse("a:/."), pair("a", "/."));
    let here = std::env::current_dir().expect("it is there");
    assert_eq!(parse("a"), Ok(("a".into(), here.join("a"))));
    for wrong in ["", ":", "a:", "a:b", ":/b", "..:/b/"] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn later_variables_replace_earlier_ones() {
    let caller = |name: &OsStr| match name.to_str() {
        Some("TERM") => Some("vt100".into()),
        Some("A") => Some("caller's".into()),
        _ => None,
    };
    let plain = environment(&[], caller);
    assert_eq!(plain[1..], ["HOME=/root", "LANG=C.UTF-8", "TERM=vt100"]);
    let given = ["HOME=/h", "A", "B=", "NONE", "A=mine", "C=x=y"].map(OsString::from);
    let all = environment(&given, caller);
    assert_eq!(all[1..], ["HOME=/h", "LANG=C.UTF-8", "TERM=vt100", "A=mine", "B=", "C=x=y"]);
}

#[test]
fn times_are_seconds() {
    assert_eq!(parse_seconds("1.5"), Ok(Duration::from_millis(1500)));
    for wrong in ["", "-1", "nan", "inf", "1s", "1e300"] {
        assert!(parse_seconds(wrong).is_err(), "{wrong}");
    }
}
