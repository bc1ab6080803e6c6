//! Debian's kernels: fetched by apt and unpacked below a cache folder, never installed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::tools::{self, APT, APT_CACHE, DPKG};

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct DebianKernel {
    /// The kernel's image.
    pub image: PathBuf,
    /// The name of the package and its version.
    pub version: String,
}

/// The newest cloud kernel of the series `6.1` or `6.12` that apt offers.
///
/// # Errors
/// No such package, no network, no place for it.
pub fn fetch(series: &str) -> Result<DebianKernel> {
    let names = tools::output(APT_CACHE.command()?.args(["pkgnames", &format!("linux-image-{series}.")]))?;
    let package = newest(names.lines(), series).with_context(|| {
        format!("apt offers no linux-image-{series}.*-cloud-amd64: apt-get update, or use another Debian")
    })?;
    let folder = cache()?.join(package);
    if !folder.join("boot").is_dir() {
        unpack(package, &folder)?;
    }
    let release = package.trim_start_matches("linux-image-");
    let image = folder.join("boot").join(format!("vmlinuz-{release}"));
    let version = fs::read_to_string(folder.join("version")).unwrap_or_default();
    Ok(DebianKernel { image, version: format!("{package} {}", version.trim()) })
}

/// The newest signed cloud kernel of `series` among the names of packages.
fn newest<'a>(names: impl Iterator<Item = &'a str>, series: &str) -> Option<&'a str> {
    let of_series = |name: &&str| {
        let release = name.strip_prefix("linux-image-").and_then(|name| name.strip_suffix("-cloud-amd64"));
        release.is_some_and(|release| release.starts_with(&format!("{series}.")))
    };
    names.filter(of_series).max_by_key(|name| numbers(name))
}

/// The numbers in a name, in order: `6.1.0-56` is newer than `6.1.0-9`.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Fetches and unpacks `package` into `folder`, which appears when it is whole.
fn unpack(package: &str, folder: &Path) -> Result<()> {
    let cache = folder.parent().unwrap_or(folder);
    let work = tempfile::tempdir_in(cache)?;
    tools::output(APT.command()?.current_dir(work.path()).args(["--quiet", "download", package]))
        .with_context(|| format!("cannot fetch {package}"))?;
    let archive = fs::read_dir(work.path())?.filter_map(Result::ok).map(|entry| entry.path());
    let archive = archive.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "deb"));
    let archive = archive.with_context(|| format!("apt fetched no file for {package}"))?;
    let tree = work.path().join("tree");
    tools::output(DPKG.command()?.arg("-x").arg(&archive).arg(&tree))?;
    let version = tools::output(DPKG.command()?.arg("-f").arg(&archive).arg("Version"))?;
    // Modules are not used.
    fs::create_dir(work.path().join("kept"))?;
    fs::rename(tree.join("boot"), work.path().join("kept/boot"))?;
    fs::write(work.path().join("kept/version"), version)?;
    fs::rename(work.path().join("kept"), folder)
        .with_context(|| format!("cannot create {}", folder.display()))
}

/// The folder for what is fetched once.
fn cache() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let folder = base.context("neither XDG_CACHE_HOME nor HOME is set")?.join("quire").join("guest");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_cloud_kernel_of_the_series_is_chosen() {
        let names = [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64-unsigned",
            "linux-image-6.1.0-58-amd64",
            "linux-image-6.12.9+deb12-cloud-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
        ];
        assert_eq!(newest(names.into_iter(), "6.1"), Some(names[1]));
        assert_eq!(newest(names.into_iter(), "6.12"), Some(names[5]));
        assert_eq!(newest(names.into_iter(), "6.6"), None);
    }
}
