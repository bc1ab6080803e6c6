//! Names for the addresses of a backtrace, from the kernel's ELF file.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use addr2line::gimli::{self, Dwarf, EndianSlice};
use addr2line::{Context, Frame, demangle_auto};
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, SymbolMap, SymbolMapName};

/// The kernel's functions, read when the first address is to be named.
pub(super) struct Symbols {
    kernel: PathBuf,
    loaded: OnceCell<Option<Loaded>>,
}

/// What an ELF file says about addresses.
struct Loaded {
    context: Context<Section>,
    symbols: SymbolMap<SymbolMapName<'static>>,
}

type Section = EndianSlice<'static, gimli::LittleEndian>;

impl Loaded {
    /// `addr2line` has a loader too, which brings the formats of all systems and two decompressors. Cargo
    /// compresses no section.
    fn new(kernel: &Path) -> Option<Loaded> {
        // All names borrow from the file. A run reads one kernel, and may keep its bytes until the end.
        let bytes: &'static [u8] = std::fs::read(kernel).ok()?.leak();
        let file = ElfFile64::<LittleEndian>::parse(bytes).ok()?;
        let section = |id: gimli::SectionId| {
            let data = file.section_by_name(id.name()).and_then(|section| section.data().ok());
            Ok::<_, gimli::Error>(EndianSlice::new(data.unwrap_or_default(), gimli::LittleEndian))
        };
        let context = Context::from_dwarf(Dwarf::load(section).ok()?).ok()?;
        Some(Loaded { context, symbols: file.symbol_map() })
    }
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
        let Some(loaded) = self.loaded.get_or_init(|| Loaded::new(&self.kernel)) else { return Vec::new() };
        let symbol_at = |address| loaded.symbols.containing(address);
        // An address of a caller is the one behind its call, which may belong to the next line or function
        // already. The first address is either such a one, or that of a faulting instruction: exact at the
        // start of a function.
        let is_start = symbol_at(address).is_some_and(|symbol| symbol.address() == address);
        let at = if number == 0 && is_start { address } else { address.saturating_sub(1) };
        let symbol = symbol_at(at).map(|symbol| demangle_auto(symbol.name().into(), None).into_owned());
        let mut found = Vec::new();
        if let Ok(mut frames) = loaded.context.find_frames(at).skip_all_loads() {
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
fn named<R: gimli::Reader>(frame: &Frame<'_, R>) -> Option<(String, String)> {
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
