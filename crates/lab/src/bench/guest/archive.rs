//! The initial RAM disk: an archive in the format "newc" of cpio(5).

/// A file or a folder of the archive.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// The path, without a slash in front.
    pub path: &'a str,
    /// The bytes of an executable file; `None` for a folder.
    pub bytes: Option<&'a [u8]>,
}

const FOLDER: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const END: &str = "TRAILER!!!";

/// The archive of `entries`. Folders stand before what they contain. Equal entries give equal bytes.
pub fn pack(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let (mode, bytes) = match entry.bytes {
            Some(bytes) => (EXECUTABLE, bytes),
            None => (FOLDER, &[][..]),
        };
        append(&mut archive, at as u32 + 1, mode, entry.path, bytes);
    }
    append(&mut archive, 0, 0, END, &[]);
    archive
}

fn append(archive: &mut Vec<u8>, inode: u32, mode: u32, path: &str, bytes: &[u8]) {
    let links = if mode == FOLDER { 2 } else { 1 };
    let size = bytes.len() as u32;
    let name = path.len() as u32 + 1;
    // inode, mode, user, group, links, time, size, device (2), device of a node (2), length of the name, checksum
    let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name, 0];
    archive.extend_from_slice(b"070701");
    for field in fields {
        archive.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    archive.extend_from_slice(path.as_bytes());
    archive.push(0);
    pad(archive);
    archive.extend_from_slice(bytes);
    pad(archive);
}

/// Names and contents begin at multiples of four bytes.
fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}
