//! The two devices that a kernel under test needs: one to speak, one to stop.

pub mod exit;
pub mod serial;
