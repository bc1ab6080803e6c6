//! Where things stand on an ext2 file system ("The Second Extended File System", D. Poirier, 2019).

use crate::errno::Errno;

/// The superblock's place on the disk, and its size.
pub const SUPERBLOCK: usize = 1024;
/// `EXT2_SUPER_MAGIC`
pub const MAGIC: u16 = 0xef53;
/// The inode of the root.
pub const ROOT: u32 = 2;
/// Numbers of blocks that an inode has itself; the last three lead to blocks of numbers.
pub const DIRECT: u64 = 12;
/// The bytes of an entry in front of its name.
pub const ENTRY_HEAD: usize = 8;

/// Fields of the superblock.
pub mod superblock {
    pub const INODES: usize = 0;
    pub const BLOCKS: usize = 4;
    pub const FREE_BLOCKS: usize = 12;
    pub const FREE_INODES: usize = 16;
    pub const FIRST_BLOCK: usize = 20;
    pub const BLOCK_LOG: usize = 24;
    pub const BLOCKS_PER_GROUP: usize = 32;
    pub const INODES_PER_GROUP: usize = 40;
    pub const WRITTEN: usize = 48;
    pub const MAGIC: usize = 56;
    pub const STATE: usize = 58;
    pub const REVISION: usize = 76;
    pub const INODE_BYTES: usize = 88;
    pub const INCOMPATIBLE: usize = 96;
    pub const READ_ONLY: usize = 100;
}

/// Fields of the descriptor of a group of blocks.
pub mod group {
    pub const BYTES: usize = 32;
    pub const BLOCK_BITMAP: usize = 0;
    pub const INODE_BITMAP: usize = 4;
    pub const INODES: usize = 8;
    pub const FREE_BLOCKS: usize = 12;
    pub const FREE_INODES: usize = 14;
    pub const DIRECTORIES: usize = 16;
}

/// Fields of an inode.
pub mod inode {
    pub const BYTES: usize = 128;
    pub const MODE: usize = 0;
    pub const UID: usize = 2;
    pub const SIZE: usize = 4;
    pub const ACCESSED: usize = 8;
    pub const CHANGED: usize = 12;
    pub const MODIFIED: usize = 16;
    pub const DELETED: usize = 20;
    pub const GID: usize = 24;
    pub const LINKS: usize = 26;
    pub const SECTORS: usize = 28;
    pub const FLAGS: usize = 32;
    pub const BLOCKS: usize = 40;
    pub const BLOCKS_END: usize = 100;
    /// The block of its extended attributes.
    pub const ATTRIBUTES: usize = 104;
    pub const SIZE_HIGH: usize = 108;
    pub const UID_HIGH: usize = 120;
    pub const GID_HIGH: usize = 122;
    /// The halves of a number.
    pub const USER: (usize, usize) = (UID, UID_HIGH);
    pub const GROUP: (usize, usize) = (GID, GID_HIGH);
    /// The flag of a directory with a tree of hashes, which this code does not keep.
    pub const INDEXED: u32 = 0x1000;
}

/// Where a block of extended attributes says how many inodes have it.
pub const ATTRIBUTE_USERS: usize = 4;

/// A number of two bytes.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// A number of four bytes.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Stores a number of two bytes.
pub fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Stores a number of four bytes.
pub fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Stores the number of a user or group, whose halves stand apart.
pub fn put_id(bytes: &mut [u8], (low, high): (usize, usize), id: u32) {
    put_u16(bytes, low, id as u16);
    put_u16(bytes, high, (id >> 16) as u16);
}

/// Changes a count of two bytes.
pub fn add_u16(bytes: &mut [u8], at: usize, by: i16) {
    put_u16(bytes, at, u16_at(bytes, at).saturating_add_signed(by));
}

/// Changes a count of four bytes.
pub fn add_u32(bytes: &mut [u8], at: usize, by: i32) {
    put_u32(bytes, at, u32_at(bytes, at).saturating_add_signed(by));
}

/// The sizes of a file system.
#[derive(Clone, Copy)]
pub struct Geometry {
    pub block_bytes: usize,
    pub blocks: u32,
    pub first_block: u32,
    pub blocks_per_group: u32,
    pub inodes: u32,
    pub inodes_per_group: u32,
    pub inode_bytes: usize,
    /// Entries of directories say what their inodes are.
    pub has_types: bool,
}

/// Entries say what their inodes are.
const TYPES: u32 = 0x2;
/// What this code knows: types in entries; fewer copies of the superblock, large files.
const KNOWN_INCOMPATIBLE: u32 = TYPES;
const KNOWN_READ_ONLY: u32 = 0x1 | 0x2;

impl Geometry {
    /// Reads it from a superblock.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for anything else than an ext2 file system whose features are known.
    pub fn read(bytes: &[u8], disk_bytes: u64) -> Result<Self, Errno> {
        use superblock::*;
        let at = |at| u32_at(bytes, at);
        let is_old = at(REVISION) == 0;
        let known =
            is_old || at(INCOMPATIBLE) & !KNOWN_INCOMPATIBLE == 0 && at(READ_ONLY) & !KNOWN_READ_ONLY == 0;
        if u16_at(bytes, MAGIC) != self::MAGIC || !known || at(BLOCK_LOG) > 2 {
            return Err(Errno::EINVAL);
        }
        let geometry = Self {
            block_bytes: 1024 << at(BLOCK_LOG),
            blocks: at(BLOCKS),
            first_block: at(FIRST_BLOCK),
            blocks_per_group: at(BLOCKS_PER_GROUP),
            inodes: at(INODES),
            inodes_per_group: at(INODES_PER_GROUP),
            has_types: !is_old && at(INCOMPATIBLE) & TYPES != 0,
            inode_bytes: if is_old { inode::BYTES } else { u16_at(bytes, INODE_BYTES).into() },
        };
        if geometry.is_sound(disk_bytes) { Ok(geometry) } else { Err(Errno::EINVAL) }
    }

    /// What later code relies on: bitmaps fill one block, inodes lie in one block, and all lies on the disk.
    fn is_sound(&self, disk_bytes: u64) -> bool {
        let bits = self.block_bytes as u32 * 8;
        let is_below = |count: u32| (1..=bits).contains(&count);
        is_below(self.blocks_per_group)
            && is_below(self.inodes_per_group)
            && self.inode_bytes.is_power_of_two()
            && (inode::BYTES..=self.block_bytes).contains(&self.inode_bytes)
            && self.first_block < self.blocks
            && u64::from(self.blocks) * self.block_bytes as u64 <= disk_bytes
            && u64::from(self.inodes) == u64::from(self.inodes_per_group) * u64::from(self.groups())
    }

    /// How many groups there are.
    pub fn groups(&self) -> u32 {
        (self.blocks - self.first_block).div_ceil(self.blocks_per_group)
    }

    /// How many numbers of blocks fit into one.
    pub fn numbers(&self) -> u64 {
        self.block_bytes as u64 / 4
    }

    /// The most blocks of a file.
    pub fn most_blocks(&self) -> u64 {
        let numbers = self.numbers();
        (DIRECT + numbers + numbers.pow(2) + numbers.pow(3)).min(u32::MAX.into())
    }

    /// Whether a file may have so many bytes.
    pub fn may_have(&self, bytes: u64) -> bool {
        bytes.div_ceil(self.block_bytes as u64) <= self.most_blocks()
    }

    /// The sector with which a block begins.
    pub fn sector(&self, block: u32) -> u64 {
        u64::from(block) * (self.block_bytes / crate::device::disk::SECTOR) as u64
    }
}
