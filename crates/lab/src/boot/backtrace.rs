//! Names for the addresses of a backtrace, from the kernel's ELF file.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use addr2line::{Frame, Loader, demangle_auto};

/// The kernel's functions, read when the first address is to be named.
pub(super) struct Symbols {
    kernel: PathBuf,
    loaded: OnceCell<Option<Loader>>,
}

impl Symbols {
    pub(super) fn new(kernel: &Path) -> Symbols {
        Symbols { kernel: kernel.to_owned(), loaded: OnceCell::new() }
    }

    /// A line of the log; a line `[quire] #N 0xADDRESS` with names, and one line more for each inlined
    /// function.
    pub(super) fn explain(&self, line: &str) -> Vec<String> {
        match frame(line) {
            Some((number, address)) => match &self.names(number, address)[..] {
                [] => vec![line.to_owned()],
                names => names.iter().map(|name| format!("{line} {name}")).collect(),
            },
            None => vec![line.to_owned()],
        }
    }

    /// The functions at an address, the innermost first.
    fn names(&self, number: u32, address: u64) -> Vec<String> {
        let Some(loader) = self.loaded.get_or_init(|| Loader::new(&self.kernel).ok()) else {
            return Vec::new();
        };
        // An address of a caller is the one behind its call, which may belong to the next line or function
        // already. The first address is either such a one, or that of a faulting instruction: exact at the
        // start of a function.
        let is_start = loader.find_symbol_info(address).is_some_and(|symbol| symbol.address() == address);
        let at = if number == 0 && is_start { address } else { address.saturating_sub(1) };
        let symbol = loader.find_symbol(at).map(|name| demangle_auto(name.into(), None).into_owned());
        let mut found = Vec::new();
        if let Ok(mut frames) = loader.find_frames(at) {
            while let Ok(Some(frame)) = frames.next() {
                found.extend(named(&frame));
            }
        }
        // The last is the function that the others are inlined into. Its symbol has its modules too.
        match (found.last_mut(), symbol) {
            (Some((last, _)), Some(symbol)) => *last = symbol,
            (None, Some(symbol)) => found.push((symbol, String::new())),
            (_, None) => {}
        }
        found.into_iter().map(|(function, place)| function + &place).collect()
    }
}

/// A function's name, and where in its source.
fn named<R: addr2line::gimli::Reader>(frame: &Frame<'_, R>) -> Option<(String, String)> {
    let function = frame.function.as_ref()?.demangle().ok()?.into_owned();
    let location = frame.location.as_ref().and_then(|location| Some((location.file?, location.line?)));
    Some((function, location.map(|(file, line)| format!(" at {file}:{line}")).unwrap_or_default()))
}

/// The number and the address of a frame.
fn frame(line: &str) -> Option<(u32, u64)> {
    let (number, address) = line.strip_prefix("[quire] #")?.trim_end().split_once(' ')?;
    let address = u64::from_str_radix(address.trim_start().strip_prefix("0x")?, 16).ok()?;
    Some((number.parse().ok()?, address))
}

#[cfg(test)]
mod tests;
