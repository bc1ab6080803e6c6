//! The command as its users meet it, and what it writes and reads.

mod boot;
mod bundled;
mod bundled_traces;
mod calibrate;
mod forged;
mod i386;
mod limits;
mod memory_script;
mod outputs;
mod pty;
mod record;
mod record_compat;
mod record_lost;
mod record_order;
mod record_privilege;
mod record_signals;
mod record_wait;
mod recorder;
mod remap_script;
mod replay;
mod replay_limits;
mod report;
mod rules;
mod small_trace;
mod terminal;
mod trace_format;
