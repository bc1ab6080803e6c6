//! Rare events as records of the crate `log`.
#![forbid(unsafe_code)]

use log::Level;
use quire::addr::Order;
use quire::platform::Event;

/// The target of the records.
pub const TARGET: &str = "quire";

/// Logs an event. A kernel calls it in its [`FramePlatform::event`](quire::platform::FramePlatform::event), as
/// `examples/log.rs` does.
///
/// The logger is called in any context, perhaps with locks held, and must not allocate from Quire.
pub fn report(event: Event) {
    log::log!(target: TARGET, level_of(event), "{event}");
}

/// The level of an event. The library continues without large folios, so only missing small ones are worth a
/// warning.
pub fn level_of(event: Event) -> Level {
    match event {
        Event::BadMemory { .. } => Level::Error,
        Event::OutOfMemory { order } if order < Order::BLOCK => Level::Warn,
        Event::Reclaimed { frames: 0 } => Level::Warn,
        Event::OutOfMemory { .. } | Event::ListsDrained => Level::Debug,
        _ => Level::Info,
    }
}
