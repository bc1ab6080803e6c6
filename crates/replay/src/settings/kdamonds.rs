//! The threads of DAMON, which watches accesses: their number is a setting. The kernel makes all of them anew when it
//! changes, and refuses to while one of them runs.

use std::fs;
use std::path::Path;

use super::guard::{Settings, SettingsError};
use super::places::Places;
use crate::host::thp::selected;

/// The file with their number, beside a directory of each.
pub(super) const NUMBER: &str = "nr_kdamonds";

impl Settings {
    /// Makes one thread, which goes with this value. Those of others stay: DAMON is then in use.
    ///
    /// # Errors
    /// [`SettingsError`] in words that name the reason: a kernel without DAMON, one where it is in use, no right to it.
    pub fn kdamond(places: &Places) -> Result<Self, SettingsError> {
        let number = places.kdamonds.join(NUMBER);
        let is_free = || match selected(&number).as_deref() {
            None => Err(SettingsError(
                "this kernel has no DAMON (CONFIG_DAMON_SYSFS), or hides it from this user".to_owned(),
            )),
            Some("0") => Ok(()),
            Some(others) => Err(SettingsError(format!("DAMON is in use (nr_kdamonds is {others})"))),
        };
        // A thread that a killed run has left is put back under the lock, and is not there any more then.
        if !places.journal().exists() {
            is_free()?;
        }
        let settings = Self::acquire_beside_a_recording(places)?;
        is_free()?;
        settings.set(&number, "1")?;
        Ok(settings)
    }
}

/// Stops all threads, before their number changes. Whatever cannot be stopped makes that change fail.
pub(super) fn stop_all(number: &Path) {
    let directory = number.parent().unwrap_or(number);
    let threads = fs::read_dir(directory).into_iter().flatten().flatten();
    for state in threads.map(|thread| thread.path().join("state")) {
        if selected(&state).as_deref() == Some("on") {
            let _ = fs::write(&state, "off");
        }
    }
}
