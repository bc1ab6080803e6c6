//! Ways to give folios to one program alone, or to keep them from it: settings of its allocator or runtime.

use std::io::Read;
use std::path::Path;

/// What gives a program its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runtime {
    Java,
    Node,
    Go,
    Jemalloc,
    Glibc,
    /// Another allocator, or none that is known.
    Other,
}

impl Runtime {
    /// By the files that the program mapped.
    pub(super) fn of(files: &[&str]) -> Self {
        let named = |part: &str| files.iter().any(|file| base(file).contains(part));
        if named("libjvm.so") {
            Self::Java
        } else if files.first().is_some_and(|program| base(program) == "node") {
            Self::Node
        } else if named("jemalloc") {
            Self::Jemalloc
        } else if named("tcmalloc") || named("mimalloc") {
            Self::Other
        } else if files.first().is_some_and(|program| is_go(Path::new(program))) {
            Self::Go
        } else if named("libc.so.6") || files.iter().any(|file| base(file).starts_with("libc-2.")) {
            Self::Glibc
        } else {
            Self::Other
        }
    }

    /// The setting that makes the program ask for folios, if it has one. glibc and jemalloc ask only where `enabled` of all
    /// sizes, `overall`, is `madvise`.
    pub(super) fn asks(self, overall: Option<&str>) -> Option<&'static str> {
        match (self, overall) {
            (Self::Java, Some("madvise" | "always")) => Some("java -XX:+UseTransparentHugePages …"),
            (Self::Jemalloc, Some("madvise")) => Some("MALLOC_CONF=thp:always … (jemalloc 5.1 or later)"),
            (Self::Glibc | Self::Node, Some("madvise")) => {
                Some("GLIBC_TUNABLES=glibc.malloc.hugetlb=1 … (glibc 2.35 or later; memory of malloc)")
            }
            _ => None,
        }
    }

    /// What makes the program ask for huge pages of a pool.
    pub(super) const fn asks_for_pool(self) -> &'static str {
        match self {
            Self::Java => "java -XX:+UseLargePages …",
            Self::Glibc => "GLIBC_TUNABLES=glibc.malloc.hugetlb=2 … (glibc 2.35 or later; memory of malloc)",
            Self::Go | Self::Node | Self::Jemalloc | Self::Other => "mmap with MAP_HUGETLB in the program",
        }
    }

    /// What puts its program text into huge pages.
    pub(super) const fn huge_text(self) -> &'static str {
        match self {
            Self::Java => "java -XX:+UseTransparentHugePages … (what is compiled at run time)",
            Self::Node => "node --use-largepages=on … (its own text)",
            Self::Go | Self::Jemalloc | Self::Glibc | Self::Other => {
                "link with -Wl,-z,max-page-size=0x200000,-z,common-page-size=0x200000; then MADV_COLLAPSE, or khugepaged \
                 with madvise(MADV_HUGEPAGE) or `always` (a kernel with CONFIG_READ_ONLY_THP_FOR_FS); a glibc of 2026 or \
                 later aligns large segments itself with GLIBC_TUNABLES=glibc.elf.thp=1. On other kernels a library can \
                 copy the text into anonymous memory"
            }
        }
    }

    /// The setting that keeps folios from the program.
    pub(super) const fn refuses(self) -> &'static str {
        match self {
            Self::Go => "GODEBUG=disablethp=1 … (Go 1.21.6 or later; its heap)",
            Self::Jemalloc => "MALLOC_CONF=thp:never … (jemalloc 5.1 or later)",
            Self::Java | Self::Node | Self::Glibc | Self::Other => {
                "prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) before it starts"
            }
        }
    }
}

/// The last part of a path.
pub(super) fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether the program on this machine was made by Go, whose code starts with its build number.
fn is_go(program: &Path) -> bool {
    const SIGN: &[u8] = b"Go build ID: \"";
    let mut head = Vec::new();
    let read = std::fs::File::open(program).and_then(|file| file.take(64 << 10).read_to_end(&mut head));
    read.is_ok() && head.windows(SIGN.len()).any(|window| window == SIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_known_by_their_files() {
        let of = |files: &[&str]| Runtime::of(files);
        let libc = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        assert_eq!(of(&["/usr/bin/gcc", libc]), Runtime::Glibc);
        assert_eq!(of(&["/usr/bin/redis-server", libc, "/usr/lib/libjemalloc.so.2"]), Runtime::Jemalloc);
        assert_eq!(of(&["/usr/bin/java", libc, "/usr/lib/jvm/lib/server/libjvm.so"]), Runtime::Java);
        assert_eq!(of(&["/usr/bin/node", libc]), Runtime::Node);
        assert_eq!(of(&["/opt/x", libc, "/usr/lib/libtcmalloc.so.4"]), Runtime::Other);
        assert_eq!(of(&["/no/such/program"]), Runtime::Other);
        assert_eq!(of(&[]), Runtime::Other);
    }

    #[test]
    fn programs_of_go_show_it_at_the_start_of_their_code() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut program = vec![0; 0x1000];
        program.extend_from_slice(b"\xff Go build ID: \"abc\"");
        std::fs::write(file.path(), program).expect("it is written");
        assert_eq!(Runtime::of(&[file.path().to_str().expect("a name")]), Runtime::Go);
    }

    #[test]
    fn malloc_asks_only_where_asking_counts() {
        for runtime in [Runtime::Glibc, Runtime::Jemalloc] {
            assert!(runtime.asks(Some("madvise")).is_some());
            assert!(runtime.asks(Some("always")).is_none() && runtime.asks(None).is_none());
        }
        assert!(
            Runtime::Go.asks(Some("madvise")).is_none() && Runtime::Other.asks(Some("madvise")).is_none()
        );
    }
}
