//! `/proc/sys`: what can be set, as far as it has a meaning in this kernel.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};

use quire::page_alloc::NodeSet;

use super::settings::{SETTINGS, VERSION};
use super::text::write_bytes;
use super::{List, hugetlb, number};
use crate::errno::Errno;
use crate::files::{random, socket};
use crate::ipc;
use crate::memory::heap;
use crate::memory::manager::manager;
use crate::task::table;

pub(super) fn add(list: &mut List) {
    add_kernel(list);
    add_random(list);
    add_overcommit(list);
    add_pools(list);
    let count = || SETTINGS.max_map_count.load(Ordering::Relaxed);
    list.control("/proc/sys/vm/max_map_count", move |out| writeln!(out, "{}", count()), set_max_map_count);
    list.trigger("/proc/sys/vm/drop_caches", drop_caches);
    // As in Linux 6.1, whatever is written.
    list.trigger("/proc/sys/vm/compact_memory", |_| {
        manager().compact(NodeSet::ALL);
        Ok(())
    });
    list.text("/proc/sys/net/core/somaxconn", |out| writeln!(out, "{}", socket::MOST_WAITING));
    list.text("/proc/sys/net/ipv4/ip_local_port_range", |out| {
        writeln!(out, "{}\t{}", socket::EPHEMERAL.start(), socket::EPHEMERAL.end())
    });
    let min_free = |out: &mut dyn Write| match MIN_FREE.load(Ordering::Relaxed) {
        u64::MAX => writeln!(out, "{}", manager().pages().min_free() * 4),
        written => writeln!(out, "{written}"),
    };
    list.control("/proc/sys/vm/min_free_kbytes", min_free, set_min_free);
    // These follow from the memory that there is, and from the addresses that programs have.
    list.text("/proc/sys/vm/lowmem_reserve_ratio", |out| out.write_str("256\t32\t0\n"));
    list.text("/proc/sys/vm/mmap_min_addr", |out| out.write_str("65536\n"));
    list.text("/proc/sys/vm/oom_kill_allocating_task", |out| out.write_str("0\n"));
    list.text("/proc/sys/vm/panic_on_oom", |out| out.write_str("0\n"));
}

fn add_kernel(list: &mut List) {
    let mut constant = |name: &str, value: &'static str| {
        list.text(alloc::format!("/proc/sys/kernel/{name}"), move |out| writeln!(out, "{value}"));
    };
    constant("ostype", VERSION.system);
    constant("osrelease", VERSION.release);
    constant("version", VERSION.build);
    constant("hostname", VERSION.node);
    constant("domainname", "(none)");
    constant("cap_last_cap", "40");
    constant("ngroups_max", "65536");
    constant("overflowuid", "65534");
    constant("overflowgid", "65534");
    constant("randomize_va_space", "0");
    constant("tainted", "0");
    setting(list, "kernel/pid_max", &SETTINGS.pid_max, 1 << 22);
    list.text("/proc/sys/kernel/threads-max", |out| {
        writeln!(out, "{}", SETTINGS.pid_max.load(Ordering::Relaxed))
    });
    list.control(
        "/proc/sys/kernel/core_pattern",
        |out| {
            write_bytes(out, SETTINGS.core_pattern.lock().text())?;
            out.write_char('\n')
        },
        |text| SETTINGS.core_pattern.lock().set(text),
    );
    setting(list, "kernel/core_uses_pid", &SETTINGS.core_uses_pid, 1);
    setting(list, "kernel/shmmax", &SETTINGS.shmmax, u64::MAX);
    setting(list, "kernel/shmall", &SETTINGS.shmall, u64::MAX);
    setting(list, "kernel/shmmni", &SETTINGS.shmmni, 1 << 15);
    setting(list, "kernel/shm_next_id", &SETTINGS.shm_next_id, i32::MAX as u64);
    list.text("/proc/sysvipc/shm", |out| {
        writeln!(
            out,
            "{:>10} {:>10}  {:>4} {:>21} {:>5} {:>5}  {:>5} {:>5} {:>5} {:>5} {:>5} {:>10} {:>10} {:>10} {:>21} {:>21}",
            "key", "shmid", "perms", "size", "cpid", "lpid", "nattch", "uid", "gid", "cuid", "cgid", "atime", "dtime",
            "ctime", "rss", "swap"
        )?;
        ipc::all().try_for_each(|segment| segment.line(out))
    });
}

fn add_random(list: &mut List) {
    let boot = random_id();
    let file = |name: &str| alloc::format!("/proc/sys/kernel/random/{name}");
    list.text(file("boot_id"), move |out| write_id(out, boot));
    list.text(file("uuid"), |out| write_id(out, random_id()));
    // The generator is seeded once, with this many bits.
    list.text(file("entropy_avail"), |out| out.write_str("256\n"));
    list.text(file("poolsize"), |out| out.write_str("256\n"));
}

/// A random identifier (RFC 9562, version 4).
fn random_id() -> u128 {
    let mut bytes = [0; 16];
    random::fill(&mut bytes);
    let (version, variant) = (0xf << 76, 0b11 << 62);
    u128::from_be_bytes(bytes) & !version & !variant | 4 << 76 | 0b10 << 62
}

fn write_id(out: &mut dyn Write, id: u128) -> fmt::Result {
    let part = |shift: u32, bits: u32| id >> shift & ((1 << bits) - 1);
    let (first, second, third) = (part(96, 32), part(80, 16), part(64, 16));
    writeln!(out, "{first:08x}-{second:04x}-{third:04x}-{:04x}-{:012x}", part(48, 16), part(0, 48))
}

fn add_overcommit(list: &mut List) {
    setting(list, "vm/overcommit_memory", &SETTINGS.overcommit_memory, 2);
    setting(list, "vm/overcommit_ratio", &SETTINGS.overcommit_ratio, i32::MAX as u64);
    setting(list, "vm/overcommit_kbytes", &SETTINGS.overcommit_kbytes, u64::MAX / 4);
}

/// Adds a file with a number up to `most`. The largest number of all is shown as -1: there is none.
fn setting(list: &mut List, name: &str, cell: &'static AtomicU64, most: u64) {
    let path = alloc::format!("/proc/sys/{name}");
    let show = move |out: &mut dyn Write| match cell.load(Ordering::Relaxed) {
        u64::MAX if most < u64::MAX => out.write_str("-1\n"),
        value => writeln!(out, "{value}"),
    };
    list.control(path, show, move |text| {
        let value = number(text).ok().filter(|value| *value <= most).ok_or(Errno::EINVAL)?;
        cell.store(value, Ordering::Relaxed);
        Ok(())
    });
}

/// The pool of the default size has three of its files here too.
fn add_pools(list: &mut List) {
    for name in [
        "nr_hugepages",
        "nr_hugepages_mempolicy",
        "nr_overcommit_hugepages",
        "hugetlb_shm_group",
        "hugetlb_optimize_vmemmap",
    ] {
        hugetlb::add_file(list, alloc::format!("/proc/sys/vm/{name}"), alloc::format!("vm/{name}"));
    }
}

/// For all processes, and those that come.
fn set_max_map_count(text: &str) -> Result<(), Errno> {
    let count = usize::try_from(number(text)?).map_err(|_| Errno::EINVAL)?;
    let count = Some(count).filter(|count| *count <= i32::MAX as usize).ok_or(Errno::EINVAL)?;
    SETTINGS.max_map_count.store(count, Ordering::Relaxed);
    for process in table::processes() {
        let space = process.space_handle();
        if let Some(space) = space {
            space.set_mapping_limit(count);
        }
    }
    Ok(())
}

/// The KiB that were written to `min_free_kbytes`, which its readers expect; the largest number before.
static MIN_FREE: AtomicU64 = AtomicU64::new(u64::MAX);

/// The lower half is the reserve of the kernel's heap, so zones never keep less than that needs.
fn set_min_free(text: &str) -> Result<(), Errno> {
    let kib = number(text).ok().filter(|kib| *kib <= i32::MAX as u64).ok_or(Errno::EINVAL)?;
    manager().pages().set_min_free(Some((kib / 4).max(2 * heap::frames())));
    MIN_FREE.store(kib, Ordering::Relaxed);
    Ok(())
}

/// 1 drops page cache, 2 what small objects can be freed, of which there are none; 4 only says no word about it.
fn drop_caches(text: &str) -> Result<(), Errno> {
    let what = number(text).ok().filter(|what| (1..=4).contains(what)).ok_or(Errno::EINVAL)?;
    while what & 1 != 0 && manager().reclaim() > 0 {}
    Ok(())
}
