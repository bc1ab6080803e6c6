//! What a package depends on: one whose tests are compiled as another package must have the same there.

use std::collections::{BTreeMap, BTreeSet};

/// How a package asks for another: its settings but for the features, and these.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Dependency {
    settings: BTreeSet<String>,
    features: BTreeSet<String>,
}

/// Where `tests` does not ask for what `library` asks for, in its own tests too, or asks for more.
pub(crate) fn check(library: &str, tests: &str) -> Vec<String> {
    let (library, tests) = (dependencies(library), dependencies(tests));
    let names: BTreeSet<&String> = library.keys().chain(tests.keys()).collect();
    let differs = |name: &&&String| library.get(**name) != tests.get(**name);
    let complaint = |name: &String| {
        let show = |of: &BTreeMap<String, Dependency>| match of.get(name) {
            Some(one) => format!("{:?} {:?}", one.settings, one.features),
            None => "nothing".into(),
        };
        format!("{name}: the library has {}, its tests have {}", show(&library), show(&tests))
    };
    names.iter().filter(differs).map(|name| complaint(name)).collect()
}

/// All dependencies of a manifest, by name. One that stands in both tables has the features of both.
fn dependencies(manifest: &str) -> BTreeMap<String, Dependency> {
    let mut found = BTreeMap::<String, Dependency>::new();
    let mut is_within = false;
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            is_within = matches!(line, "[dependencies]" | "[dev-dependencies]");
            continue;
        }
        let Some((name, value)) = line.split_once('=').filter(|_| is_within && !line.starts_with('#')) else {
            continue;
        };
        let (name, value) = (name.trim(), value.trim());
        let (name, settings) = match name.strip_suffix(".workspace") {
            Some(name) => (name, vec![format!("workspace = {value}")]),
            None => (name, settings(value)),
        };
        let one = found.entry(name.into()).or_default();
        // A path says which version it is; the number is for the registry.
        let has_path = settings.iter().any(|setting| setting.starts_with("path"));
        for setting in settings.iter().filter(|setting| !has_path || !setting.starts_with("version")) {
            match setting.strip_prefix("features") {
                Some(list) => one.features.extend(list.split('"').skip(1).step_by(2).map(str::to_string)),
                None => _ = one.settings.insert(setting.clone()),
            }
        }
    }
    found
}

/// `"1"` or `{ version = "1", features = ["a", "b"] }`, as settings.
fn settings(value: &str) -> Vec<String> {
    let Some(table) = value.strip_prefix('{').and_then(|value| value.strip_suffix('}')) else {
        return vec![format!("version = {value}")];
    };
    let (mut settings, mut is_in_list) = (vec![String::new()], false);
    for c in table.chars() {
        is_in_list = is_in_list && c != ']' || c == '[';
        match settings.last_mut() {
            Some(last) if c != ',' || is_in_list => last.push(c),
            _ => settings.push(String::new()),
        }
    }
    settings.iter().map(|setting| setting.trim().to_string()).filter(|setting| !setting.is_empty()).collect()
}

#[test]
fn a_dependency_that_is_not_the_same_is_found() {
    let library = "[package]\nname = \"a\"\n[dependencies]\n# One.\nb = \"1\"\nc.workspace = true\n\
                   d = { path = \"../d\", version = \"0.1\", features = [\"x\", \"y\"] }\n\
                   [dev-dependencies]\nd = { path = \"../d\", features = [\"z\"] }\n[lints]\nworkspace = true\n";
    let tests = |lines: &str| format!("[package]\nversion = \"2\"\n[dev-dependencies]\n{lines}");
    let same = "d = { path = \"../d\", features = [\"z\", \"y\", \"x\"] }\nc.workspace = true\nb = \"1\"\n";
    assert_eq!(check(library, &tests(same)), [""; 0]);
    for (from, to, name) in [
        ("\"1\"", "\"2\"", "b"),
        ("b = \"1\"\n", "", "b"),
        ("c.workspace = true", "c = \"1\"", "c"),
        ("\"z\", ", "", "d"),
        ("\"z\", ", "\"z\", \"q\", ", "d"),
        ("b = \"1\"", "b = { version = \"1\", default-features = false }", "b"),
        ("b = \"1\"", "b = \"1\"\ne = \"1\"", "e"),
    ] {
        let found = check(library, &tests(&same.replace(from, to)));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("{name}: ")), "{found:?}");
    }
}
