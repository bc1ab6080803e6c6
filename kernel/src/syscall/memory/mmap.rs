//! `mmap` and `munmap`

use linux_raw_sys::general as abi;
use quire::arch::Protection;
use quire::error::MmError;
use quire::filemap::FileKind;
use quire::hugetlb::HugeSize;
use quire::limits::FRAME_SIZE;
use quire::vm::{Backing, MapRequest, Placement, Sharing};

use crate::errno::Errno;
use crate::files::mounts;
use crate::files::open::Mapping;
use crate::ipc;
use crate::memory::manager::manager;
use crate::observe::{self, commit_allows};
use crate::syscall::{Answer, Call};

/// The flags that `MAP_SHARED_VALIDATE` knows. Other kinds of mappings ignore unknown flags.
const KNOWN: u32 = abi::MAP_SHARED
    | abi::MAP_PRIVATE
    | abi::MAP_FIXED
    | abi::MAP_ANONYMOUS
    | abi::MAP_DENYWRITE
    | abi::MAP_EXECUTABLE
    | abi::MAP_UNINITIALIZED
    | abi::MAP_GROWSDOWN
    | abi::MAP_LOCKED
    | abi::MAP_NORESERVE
    | abi::MAP_POPULATE
    | abi::MAP_NONBLOCK
    | abi::MAP_STACK
    | abi::MAP_HUGETLB
    | abi::MAP_32BIT
    | abi::MAP_ABOVE4G
    | abi::MAP_HUGE_2MB
    | abi::MAP_HUGE_1GB;

/// The flags of a mapping.
#[derive(Clone, Copy)]
struct Flags(u32);

impl Flags {
    fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    fn sharing(self) -> Result<Sharing, Errno> {
        match self.0 & abi::MAP_TYPE {
            abi::MAP_PRIVATE => Ok(Sharing::Private),
            abi::MAP_SHARED => Ok(Sharing::Shared),
            // Only files know flags of their own. Memory of a pool is a file.
            abi::MAP_SHARED_VALIDATE if self.has(abi::MAP_ANONYMOUS) && !self.has(abi::MAP_HUGETLB) => {
                Err(Errno::EINVAL)
            }
            abi::MAP_SHARED_VALIDATE if self.0 & !KNOWN != 0 => Err(Errno::EOPNOTSUPP),
            abi::MAP_SHARED_VALIDATE => Ok(Sharing::Shared),
            _ => Err(Errno::EINVAL),
        }
    }

    fn placement(self) -> Placement {
        if self.has(abi::MAP_FIXED_NOREPLACE) {
            Placement::FixedNoReplace
        } else if self.has(abi::MAP_FIXED) {
            Placement::Fixed
        } else if self.has(abi::MAP_32BIT) {
            Placement::Low
        } else {
            Placement::Hint
        }
    }

    /// The huge pages that anonymous memory asks for.
    fn huge(self) -> Result<Option<HugeSize>, Errno> {
        if !self.has(abi::MAP_HUGETLB) {
            return Ok(None);
        }
        huge_size(self.0 >> abi::MAP_HUGE_SHIFT & abi::MAP_HUGE_MASK).map(Some).ok_or(Errno::EINVAL)
    }
}

/// The size of huge pages with this base-two logarithm; 0 is the default size.
pub(in crate::syscall) fn huge_size(log: u32) -> Option<HugeSize> {
    match log {
        0 => Some(manager().huge_pools().default_size()),
        log => HugeSize::ALL.into_iter().find(|size| size.bytes().trailing_zeros() == log),
    }
}

impl Call<'_> {
    /// `mmap`
    pub(in crate::syscall) fn mmap(&self) -> Answer {
        let [_, len, prot, flags, descriptor, offset] = self.arguments;
        if !offset.is_multiple_of(FRAME_SIZE) {
            return Err(Errno::EINVAL);
        }
        let flags = Flags(flags as u32);
        let request = MapRequest {
            addr: self.addr(0),
            len,
            prot: Protection::from_bits(prot as u8),
            placement: flags.placement(),
            grows_down: flags.has(abi::MAP_GROWSDOWN),
            populate: flags.has(abi::MAP_POPULATE) && !flags.has(abi::MAP_NONBLOCK),
            locked: flags.has(abi::MAP_LOCKED),
            noreserve: flags.has(abi::MAP_NORESERVE) && observe::may_overcommit(),
            ..MapRequest::default()
        };
        if flags.has(abi::MAP_ANONYMOUS) {
            let huge = flags.huge()?;
            check_length(len, offset)?;
            return self.map(&MapRequest { huge, sharing: flags.sharing()?, ..request });
        }
        self.map_file(flags, &request, descriptor, offset)
    }

    /// Maps an open file. The mapping keeps the file's pages; the handle is needed no longer than the call.
    fn map_file(&self, flags: Flags, request: &MapRequest<'_>, descriptor: u64, offset: u64) -> Answer {
        let file = self.file_of(descriptor)?;
        check_length(request.len, offset)?;
        let sharing = flags.sharing()?;
        let mapping = file.file().mapping()?;
        let may_store = file.can_write() && file.file().may_map_to_store();
        let stores = sharing == Sharing::Shared && request.prot.contains(Protection::WRITE);
        if !file.can_read() || stores && !file.can_write() {
            return Err(Errno::EACCES);
        }
        if stores && !may_store {
            return Err(Errno::EPERM);
        }
        // What is open for reading alone, or sealed, can never be stored to.
        let mut forbid =
            if sharing == Sharing::Shared && !may_store { Protection::WRITE } else { Protection::NONE };
        if mounts::has_flag(file.place(), abi::MS_NOEXEC) {
            if request.prot.contains(Protection::EXEC) {
                return Err(Errno::EPERM);
            }
            forbid = forbid.union(Protection::EXEC);
        }
        let backed = match mapping {
            Mapping::File(file) => file,
            Mapping::Zeroes => {
                let apart = sharing == Sharing::Private;
                return self.map(&MapRequest { sharing, forbid, apart, ..*request });
            }
        };
        if flags.has(abi::MAP_HUGETLB) && !matches!(backed.node().kind(), FileKind::Huge { .. }) {
            return Err(Errno::EINVAL);
        }
        observe::mapped_files::note_mapped(backed.number(), file.place())?;
        let backing = Backing::File { file: backed, page_offset: offset / FRAME_SIZE };
        self.map(&MapRequest { backing, sharing, forbid, ..*request })
    }

    pub(super) fn map(&self, request: &MapRequest<'_>) -> Answer {
        // As in Linux before the limits. The sum below overflows without it.
        if request.len > self.memory.end().0 {
            return Err(Errno::ENOMEM);
        }
        if request.locked {
            self.lock_limit()?;
        }
        if request.locked || self.space.locks_future() {
            self.check_more_locked(request.len)?;
        }
        if is_charged(request) && !commit_allows(request.len) {
            return Err(Errno::ENOMEM);
        }
        match self.space.mmap(request) {
            Ok(addr) => {
                if request.placement == Placement::Fixed {
                    ipc::collect();
                }
                Ok(addr.0)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// `munmap`
    pub(in crate::syscall) fn munmap(&self) -> Answer {
        self.space.munmap(self.addr(0), self.arguments[1])?;
        ipc::collect();
        Ok(0)
    }
}

/// Whether the memory counts as promised: unless it is a file's, it may need a frame for each page.
fn is_charged(request: &MapRequest<'_>) -> bool {
    let own = matches!(request.backing, Backing::Anonymous) && request.huge.is_none();
    let copies = request.sharing == Sharing::Private && request.prot.contains(Protection::WRITE);
    let shared = own && request.sharing == Sharing::Shared;
    request.huge.is_none() && (copies || shared) && !request.noreserve
}

/// Linux checks these before it looks at the kind of the mapping.
fn check_length(len: u64, offset: u64) -> Result<(), Errno> {
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    let pages = len.checked_next_multiple_of(FRAME_SIZE).ok_or(MmError::NoMemory)? / FRAME_SIZE;
    // Offsets are numbers of 64 bits, counted in pages.
    (offset / FRAME_SIZE).checked_add(pages).ok_or(MmError::Overflow)?;
    Ok(())
}
