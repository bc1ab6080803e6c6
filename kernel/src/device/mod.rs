//! The devices that a kernel under test needs: two to speak, one to stop, and disks.

pub mod disk;
pub mod exit;
pub mod log;
mod pci;
pub mod serial;
