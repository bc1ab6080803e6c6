//! Where members lie in the kernel's structures that the programs read.

use super::btf::Btf;

/// The members of the kernel's structures that are read: `structure.member`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    pub(super) thread_status: i16,
    pub(super) task_pid: i16,
    pub(super) task_signal: i16,
    pub(super) signal_live: i16,
    pub(super) mapping_host: i16,
    pub(super) inode_number: i16,
    pub(super) inode_super: i16,
    pub(super) super_device: i16,
    pub(super) folio_mapping: i16,
}

/// The structures that are looked at.
pub(super) const STRUCTURES: [&str; 7] =
    ["thread_info", "task_struct", "signal_struct", "address_space", "inode", "super_block", "folio"];

impl Offsets {
    pub(super) fn of(btf: &Btf) -> Option<Offsets> {
        Some(Offsets {
            thread_status: btf.offset("thread_info", "status")?,
            task_pid: btf.offset("task_struct", "pid")?,
            task_signal: btf.offset("task_struct", "signal")?,
            signal_live: btf.offset("signal_struct", "live")?,
            mapping_host: btf.offset("address_space", "host")?,
            inode_number: btf.offset("inode", "i_ino")?,
            inode_super: btf.offset("inode", "i_sb")?,
            super_device: btf.offset("super_block", "s_dev")?,
            folio_mapping: btf.offset("folio", "mapping")?,
        })
    }
}
