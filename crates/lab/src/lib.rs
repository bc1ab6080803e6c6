//! Record a program's memory life, replay it under other policies, measure it against Linux.

pub mod bench;
pub mod calibrate;
pub mod cli;
pub mod output;
pub mod record;
pub mod replay;
pub mod trace;
