//! The devices that a kernel under test needs: two to speak, one to stop.

pub mod exit;
pub mod log;
pub mod serial;
