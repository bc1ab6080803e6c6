//! The files that a command works on: those that were named, those of folders, and the share of one of several machines.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use crate::output::quoted;

/// One of several equal shares of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    number: usize,
    count: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text
            .split_once('/')
            .and_then(|(number, count)| Some((number.parse::<usize>().ok()?, count.parse::<usize>().ok()?)));
        match parts {
            Some((number, count)) if (1..=count).contains(&number) => Ok(Self { number, count }),
            _ => Err("write a number and how many there are, from 1/4 to 4/4".to_owned()),
        }
    }
}

/// The files of `paths`, in order: of a folder those whose names end in `extension`, by name, folders in it among them.
/// With a shard every n-th of them, so that neighbours, which often are alike, go to different machines.
///
/// # Errors
/// A folder that cannot be read or has no such file.
pub fn chosen(paths: &[PathBuf], extension: &str, shard: Option<Shard>) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        if path.is_dir() {
            let before = all.len();
            of_folder(path, extension, &mut all)?;
            if all.len() == before {
                bail!("{} has no file whose name ends in .{extension}", quoted(path));
            }
        } else {
            all.push(path.clone());
        }
    }
    let Some(Shard { number, count }) = shard else { return Ok(all) };
    Ok(all.into_iter().skip(number - 1).step_by(count).collect())
}

fn of_folder(folder: &Path, extension: &str, all: &mut Vec<PathBuf>) -> Result<()> {
    let read = || format!("cannot read {}", quoted(folder));
    let entries = fs::read_dir(folder).with_context(read)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>().with_context(read)?;
    paths.sort();
    for path in paths {
        // A link to a folder may lead back here.
        if path.is_dir() && !path.is_symlink() {
            of_folder(&path, extension, all)?;
        } else if path.extension().is_some_and(|found| found == extension) {
            all.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_apart_and_together_everything() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("more")).unwrap();
        for name in ["b.qtrace", "a.qtrace", "more/c.qtrace", "more/notes.txt", "d.qtrace"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let paths = [folder.path().to_owned(), PathBuf::from("named")];
        let all = chosen(&paths, "qtrace", None).unwrap();
        let names: Vec<&str> = all.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert_eq!(names, ["a.qtrace", "b.qtrace", "d.qtrace", "c.qtrace", "named"]);
        for count in 1..=7 {
            let shard = |number| format!("{number}/{count}").parse::<Shard>().unwrap();
            let shards = (1..=count).map(|number| chosen(&paths, "qtrace", Some(shard(number))).unwrap());
            let mut together: Vec<PathBuf> = shards.flatten().collect();
            together.sort_by_key(|path| all.iter().position(|other| other == path));
            assert_eq!(together, all);
        }
    }

    #[test]
    fn a_share_that_does_not_exist_is_refused() {
        for text in ["0/4", "5/4", "1/0", "1", "a/b", "-1/2", ""] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        let error = chosen(&[folder.path().to_owned()], "qtrace", None).unwrap_err();
        assert!(error.to_string().contains("no file whose name ends in .qtrace"), "{error}");
    }
}
