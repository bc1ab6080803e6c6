//! What `quire advise --format json` recommends, as options of `quire verify`.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::Args;
use super::conditions::PoolPages;
use crate::output::{quoted, say};
use crate::replay::FolioSet;

/// The options with what the file recommends, where they leave it open: single pages, the baseline and the
/// chosen set; the chosen sizes of shared memory; the pages of the pools.
///
/// # Errors
/// A file that is no line of `quire advise --format json`, or has several.
pub(super) fn with(mut args: Args, file: &Path) -> Result<Args> {
    let name = || quoted(file).to_string();
    let unusable = || format!("cannot use {}; give what `quire advise --format json` wrote", name());
    let text = std::fs::read_to_string(file).with_context(unusable)?;
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let (Some(line), None) = (lines.next(), lines.next()) else {
        bail!("{}: give one line of `quire advise --format json`", name());
    };
    let advice: Value = serde_json::from_str(line).with_context(unusable)?;
    if !advice["sets"].is_array() || !advice["command"].is_array() {
        bail!("{}: not written by `quire advise --format json`", name());
    }
    let set = |value: &Value| -> Result<Option<FolioSet>> {
        let named = value.as_str().map(FolioSet::named).transpose();
        named.map_err(|error| anyhow!("{}: {error}", name()))
    };
    let (own_sizes, own_pool) = (!args.sizes.is_empty(), args.pool.is_some());
    if !own_sizes {
        let sets = [Some(FolioSet::FRAMES), set(&advice["baseline"])?, set(&advice["chosen"])?];
        // The plan for some mappings: they ask, and all others stay as they are.
        let plan = set(&advice["plan"]["folio"])?.map(|plan| sets[1].unwrap_or_default().on_request(plan));
        for set in sets.into_iter().chain([plan]).flatten() {
            if !args.sizes.contains(&set) {
                args.sizes.push(set);
            }
        }
    }
    args.shmem = args.shmem.or(set(&advice["shmem"]["chosen"])?);
    args.pool = args.pool.or_else(|| pool(&advice["hugetlb"]));
    asks(&advice, own_sizes, own_pool).into_iter().for_each(say);
    if args.command.is_empty() {
        if advice["attached"] == true {
            bail!(
                "{}: it is of a program that ran already; give the command that starts it behind --",
                name()
            );
        }
        let words = advice["command"].as_array().into_iter().flatten();
        args.command = words.filter_map(|word| Some(OsString::from(word.as_str()?))).collect();
    }
    if args.command.is_empty() {
        bail!("{}: it names no command: give one behind --", name());
    }
    Ok(args)
}

/// What of the advice helps only a program that asks, unless the user's own sizes or pool replace it.
fn asks(advice: &Value, own_sizes: bool, own_pool: bool) -> Vec<&'static str> {
    let plan = "quire: the plan for some mappings helps only if the program asks there: give its command with the \
                setting that makes it ask";
    let pool = "quire: the program uses the pool only if it asks: give its command with the setting that makes it ask";
    let carried = advice["hugetlb"]["mappings"].as_array().is_some_and(|mappings| !mappings.is_empty());
    let of_plan = (advice["plan"].is_object() && !own_sizes).then_some(plan);
    of_plan.into_iter().chain((carried && !own_pool).then_some(pool)).collect()
}

/// The pages that the program maps itself, and those that would carry its mappings.
fn pool(hugetlb: &Value) -> Option<PoolPages> {
    let pages = |name: &str| hugetlb[name].as_u64().unwrap_or(0);
    let pages = PoolPages([pages("used_2m") + pages("pages_2m"), pages("used_1g")]);
    (!pages.is_none()).then_some(pages)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::replay::parse_set;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn read(text: &str, more: &[&str]) -> Result<Args> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("advice.json");
        std::fs::write(&file, text).unwrap();
        let words = [&["verify", "--advice", file.to_str().unwrap()][..], more].concat();
        with(Command::try_parse_from(words).unwrap().args, &file)
    }

    const ADVICE: &str = r#"{"sets":[],"command":["./work","-v"],"baseline":"4K","chosen":"64K, 2M by madvise",
        "shmem":{"chosen":"64K"},"hugetlb":{"used_2m":4,"used_1g":0,"pages_2m":null,"mappings":[]},"plan":null}"#;

    #[test]
    fn exactly_what_is_recommended_is_set() {
        let advice = ADVICE.replace('\n', "");
        let args = read(&advice, &[]).unwrap();
        let set = |name: &str| parse_set(name).unwrap();
        assert_eq!(args.sizes, [set("4K"), set("64K").on_request(set("2M"))]);
        assert_eq!((args.shmem, args.pool), (Some(set("64K")), Some(PoolPages([4, 0]))));
        assert_eq!(args.command, ["./work", "-v"]);
        let planned = read(&advice.replace(r#""plan":null"#, r#""plan":{"folio":"64K"}"#), &[]).unwrap();
        assert_eq!(planned.sizes[2], set("4K").on_request(set("64K")));
        let own = read(&advice, &["--sizes", "2M", "--pool", "2M=1", "--", "other"]).unwrap();
        assert_eq!((own.sizes, own.pool), (vec![set("2M")], Some(PoolPages([1, 0]))));
        assert_eq!(own.command, ["other"]);
    }

    #[test]
    fn a_file_that_is_no_advice_is_refused_with_what_to_give() {
        let cure = "give what `quire advise --format json` wrote";
        let error = read("no advice", &[]).unwrap_err();
        assert!(error.to_string().contains(cure), "{error}");
        let args = Command::try_parse_from(["verify", "--", "true"]).unwrap().args;
        let error = with(args, Path::new("/no/such/file")).unwrap_err();
        assert!(error.to_string().contains(cure), "{error}");
    }

    #[test]
    fn only_what_is_taken_from_the_advice_is_told_of() {
        let advice = serde_json::json!({"plan": {"folio": "64K"}, "hugetlb": {"mappings": [{}]}});
        let told = |sizes, pool| asks(&advice, sizes, pool).len();
        assert_eq!(
            [told(false, false), told(true, false), told(false, true), told(true, true)],
            [2, 1, 1, 0]
        );
        assert_eq!(asks(&serde_json::json!({"plan": null, "hugetlb": null}), false, false).len(), 0);
    }

    #[test]
    fn what_is_no_advice_is_refused() {
        let advice = ADVICE.replace('\n', "");
        for wrong in ["", "{}", &format!("{advice}\n{advice}"), &advice.replace("64K,", "65K,")] {
            assert!(read(wrong, &[]).is_err(), "{wrong}");
        }
        // Its command line is not one that starts it once more.
        let attached = advice.replace(r#""plan":null"#, r#""plan":null,"attached":true"#);
        let why = read(&attached, &[]).unwrap_err().to_string();
        assert!(why.contains("ran already"), "{why}");
        assert_eq!(read(&attached, &["--", "other"]).unwrap().command, ["other"]);
    }
}
