//! Files that never have a name (`memfd_create(2)`).

use linux_raw_sys::general as abi;

use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::mount;
use crate::files::open::{OpenFile, Opening};
use crate::files::tmpfs::{Contents, Inode};
use crate::syscall::memory::huge_size;
use crate::syscall::{Answer, Call};

/// The longest name, with what the kernel puts before it.
const NAME_BYTES: usize = 249;
const KNOWN: u32 = abi::MFD_CLOEXEC | abi::MFD_ALLOW_SEALING | abi::MFD_NOEXEC_SEAL | abi::MFD_EXEC;

impl Call<'_> {
    pub(in crate::syscall) fn memfd_create(&self) -> Answer {
        let flags = self.arguments[1] as u32;
        let is_huge = flags & abi::MFD_HUGETLB != 0;
        let sizes = if is_huge { abi::MFD_HUGETLB | abi::MFD_HUGE_MASK << abi::MFD_HUGE_SHIFT } else { 0 };
        super::check_flags(flags.into(), KNOWN | sizes)?;
        let both = abi::MFD_EXEC | abi::MFD_NOEXEC_SEAL;
        if flags & both == both {
            return Err(Errno::EINVAL);
        }
        let name = self.memory.read_string(self.addr(0), NAME_BYTES + 1, Errno::EINVAL)?;
        let name = [b"/memfd:", name.as_slice()].concat();
        let log = flags >> abi::MFD_HUGE_SHIFT & abi::MFD_HUGE_MASK;
        let contents = match is_huge {
            true => Contents::Huge(huge_size(log).ok_or(Errno::ENODEV)?),
            false => Contents::Memory,
        };
        let mode = if flags & abi::MFD_NOEXEC_SEAL != 0 { 0o666 } else { 0o777 };
        let inode = Inode::regular(&mount::unnamed(), contents, mode);
        inode.body().expect("a regular file").allow_seals(flags);
        let place = Dentry::unnamed(&name, inode);
        place.set_removed();
        let open_flags = abi::O_RDWR | abi::O_LARGEFILE;
        let file = place.node().clone().open(&Opening { place: &place, flags: open_flags })?;
        let file = OpenFile::new(file, place, open_flags);
        self.table().add(file, flags & abi::MFD_CLOEXEC != 0)
    }
}
