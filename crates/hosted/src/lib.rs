//! A machine inside a process.
