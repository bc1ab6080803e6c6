//! The kernel's own description of its types, of which the programs need a few offsets and numbers.
//!
//! The format is that of the kernel's `Documentation/bpf/btf.rst`: a header, types in a row, which are
//! counted from 1, and names. A crate would read all of the 120,000 types into memory; this looks for names
//! and skips everything else.

use std::collections::{HashMap, HashSet};

const MAGIC: u16 = 0xeb9f;
const HEADER: usize = 24;

/// Kinds of types.
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const PROTOTYPE: u32 = 13;
    pub(super) const VARIABLE: u32 = 14;
    pub(super) const SECTION: u32 = 15;
    pub(super) const TAG: u32 = 17;
    pub(super) const ENUM_64: u32 = 19;
}

/// The types of a kernel.
pub(super) struct Btf {
    bytes: Vec<u8>,
    /// Where names start.
    names: usize,
    /// Where each type starts; the first one is `void`.
    types: Vec<usize>,
    /// The place of each wanted name among the names, where each is once.
    wanted: HashMap<String, u32>,
    /// Structures and new names for types that have a wanted name, by its place.
    by_name: HashMap<(u32, u32), u32>,
}

/// One type: its number of parts, its kind, and where what belongs to it starts.
struct Type {
    parts: usize,
    kind: u32,
    /// Whether offsets of members contain the sizes of bit fields.
    has_bit_fields: bool,
    /// The type that it refers to, or its size.
    refers_to: u32,
    body: usize,
}

impl Btf {
    /// Of the running kernel, for structures and tracepoints of these names.
    pub(super) fn of_kernel(structures: &[&str], tracepoints: &[&str]) -> Option<Btf> {
        Btf::parse(std::fs::read("/sys/kernel/btf/vmlinux").ok()?, structures, tracepoints)
    }

    fn parse(bytes: Vec<u8>, structures: &[&str], tracepoints: &[&str]) -> Option<Btf> {
        let magic = u16::from_le_bytes(*bytes.first_chunk()?);
        let length = word(&bytes, 4)? as usize;
        if magic != MAGIC || length < HEADER {
            return None;
        }
        let start = length + word(&bytes, 8)? as usize;
        let end = start.checked_add(word(&bytes, 12)? as usize)?;
        let names = length + word(&bytes, 16)? as usize;
        let handlers = tracepoints.iter().map(|name| handlers(name));
        let wanted: HashSet<String> =
            structures.iter().map(|&name| name.to_owned()).chain(handlers).collect();
        let wanted = places(bytes.get(names..)?, &wanted);
        let at_places: HashSet<u32> = wanted.values().copied().collect();
        let mut btf = Btf { bytes, names, types: vec![start], wanted, by_name: HashMap::new() };
        let mut at = start;
        while at < end {
            let found = btf.read(at)?;
            let name = word(&btf.bytes, at)?;
            if matches!(found.kind, kind::STRUCT | kind::TYPEDEF) && at_places.contains(&name) {
                btf.by_name.entry((found.kind, name)).or_insert(btf.types.len() as u32);
            }
            btf.types.push(at);
            at = found.body + found.bytes();
        }
        Some(btf)
    }

    fn read(&self, at: usize) -> Option<Type> {
        let info = word(&self.bytes, at + 4)?;
        Some(Type {
            parts: (info & 0xffff) as usize,
            kind: info >> 24 & 0x1f,
            has_bit_fields: info >> 31 != 0,
            refers_to: word(&self.bytes, at + 8)?,
            body: at + 12,
        })
    }

    fn by_number(&self, number: u32) -> Option<Type> {
        // The first type is `void`, which has no description.
        let number = (number != 0).then_some(number as usize)?;
        self.read(*self.types.get(number)?)
    }

    fn has_name(&self, place: u32, name: &str) -> bool {
        let start = self.names + place as usize;
        let end = start + name.len();
        self.bytes.get(start..end) == Some(name.as_bytes()) && self.bytes.get(end) == Some(&0)
    }

    /// The number of the type of a tracepoint's handlers, and how many arguments these have.
    pub(super) fn tracepoint(&self, name: &str) -> Option<(u32, usize)> {
        let name = self.wanted.get(&handlers(name))?;
        let number = *self.by_name.get(&(kind::TYPEDEF, *name))?;
        // It is a name for a pointer to a prototype.
        let pointer = self.by_number(number)?.refers_to;
        let prototype = self.by_number(self.by_number(pointer)?.refers_to)?;
        // The first argument is the kernel's own.
        (prototype.kind == kind::PROTOTYPE).then_some((number, prototype.parts.checked_sub(1)?))
    }

    /// The offset of a member of a structure, in bytes. Members of structures without a name belong to it.
    pub(super) fn offset(&self, structure: &str, member: &str) -> Option<i16> {
        let number = *self.by_name.get(&(kind::STRUCT, *self.wanted.get(structure)?))?;
        i16::try_from(self.member(number, member)? / 8).ok()
    }

    fn member(&self, number: u32, name: &str) -> Option<u32> {
        let found = self.by_number(number)?;
        if !matches!(found.kind, kind::STRUCT | kind::UNION) {
            return None;
        }
        (0..found.parts).find_map(|index| {
            let at = found.body + index * 12;
            let (place, of_type) = (word(&self.bytes, at)?, word(&self.bytes, at + 4)?);
            let bits = word(&self.bytes, at + 8)? & if found.has_bit_fields { 0xff_ffff } else { u32::MAX };
            if place == 0 {
                return Some(bits + self.member(of_type, name)?);
            }
            self.has_name(place, name).then_some(bits)
        })
    }
}

impl Type {
    /// The bytes behind its first three words.
    fn bytes(&self) -> usize {
        match self.kind {
            kind::INT | kind::VARIABLE | kind::TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::SECTION | kind::ENUM_64 => 12 * self.parts,
            kind::ENUM | kind::PROTOTYPE => 8 * self.parts,
            _ => 0,
        }
    }
}

/// The name of the type of a tracepoint's handlers.
fn handlers(tracepoint: &str) -> String {
    format!("btf_trace_{tracepoint}")
}

/// Where these names are among all names.
fn places(names: &[u8], wanted: &HashSet<String>) -> HashMap<String, u32> {
    let mut found = HashMap::new();
    let mut place = 0;
    // What is behind the last zero byte is no name.
    for name in names.split_inclusive(|byte| *byte == 0) {
        if let Some((0, name)) = name.split_last()
            && let Ok(name) = std::str::from_utf8(name)
            && wanted.contains(name)
        {
            found.insert(name.to_owned(), place);
        }
        place += name.len() as u32;
    }
    found
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct outer { int first; struct { int second; }; }`, and a tracepoint's type with two arguments.
    fn small() -> Vec<u8> {
        let names = b"\0int\0outer\0first\0second\0btf_trace_some\0";
        let place = |name: &str| {
            names
                .windows(name.len() + 1)
                .position(|it| it == [name.as_bytes(), &[0]].concat())
                .expect("it is there") as u32
        };
        let info = |kind: u32, parts: u32| kind << 24 | parts;
        let types: Vec<u32> = [
            vec![place("int"), info(kind::INT, 0), 4, 32],
            // 2: without a name
            vec![0, info(kind::STRUCT, 1), 4, place("second"), 1, 0],
            vec![place("outer"), info(kind::STRUCT, 2), 8, place("first"), 1, 0, 0, 2, 32],
            // 4: a prototype with three arguments; then a pointer to it, and its name
            vec![0, info(kind::PROTOTYPE, 3), 0, 0, 1, 0, 1, 0, 1],
            vec![0, info(2, 0), 4],
            vec![place("btf_trace_some"), info(kind::TYPEDEF, 0), 5],
        ]
        .concat();
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let length = types.len() as u32 * 4;
        bytes.extend([24, 0, length, length, names.len() as u32].iter().flat_map(|it| it.to_le_bytes()));
        bytes.extend(types.iter().flat_map(|it| it.to_le_bytes()));
        bytes.extend(names);
        bytes
    }

    fn parse(bytes: Vec<u8>) -> Option<Btf> {
        Btf::parse(bytes, &["outer", "absent"], &["some"])
    }

    #[test]
    fn offsets_and_numbers_are_found() {
        let btf = parse(small()).expect("it is whole");
        assert_eq!(btf.offset("outer", "first"), Some(0));
        assert_eq!(btf.offset("outer", "second"), Some(4));
        assert_eq!(btf.offset("outer", "third"), None);
        assert_eq!(btf.tracepoint("some"), Some((6, 2)));
        assert_eq!(btf.tracepoint("other"), None);
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let whole = small();
        for length in 0..whole.len() {
            // Without names, at most nothing is found.
            if let Some(btf) = parse(whole[..length].to_vec()) {
                assert!(btf.tracepoint("some").is_none(), "{length}");
            }
        }
        assert!(parse(vec![0; 64]).is_none());
    }
}
