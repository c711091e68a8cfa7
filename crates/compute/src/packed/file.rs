//! The format of a file of packed weights; `docs/components/compute.md` describes it.
//!
//! ```text
//! head      64 bytes    magic, version, pieces, key, place of the table, checksum of head and table
//! pieces                each at a multiple of 64 bytes, in the order in which they were asked for
//! table     32 a piece  layout, place, bytes, checksum of those
//! ```
//!
//! Numbers of head and table are little-endian, those of the pieces as the machine has them: the key names the machine.

use super::Key;
use std::ops::Range;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The first bytes of every file.
const MAGIC: [u8; 8] = *b"HLMDPACK";
/// Of this format. What lies in the pieces is a matter of the key.
const VERSION: u32 = 2;
/// Where pieces start: a cache line, the alignment of every buffer.
pub(super) const ALIGNMENT: usize = 64;
pub(super) const HEAD_BYTES: usize = 64;
/// Bytes of the head that the checksum covers; it follows them.
const CHECKED_BYTES: usize = 40;
const ROW_BYTES: usize = 32;

/// Some packed weights in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The hash of what they are called and of their datatype.
    pub layout: u64,
    /// Their bytes in the file.
    pub bytes: Range<usize>,
    /// The checksum of those bytes.
    sum: u64,
}

impl Piece {
    /// What lies at `start`.
    pub(super) fn new(layout: u64, start: usize, bytes: &[u8]) -> Piece {
        Piece { layout, bytes: start..start + bytes.len(), sum: xxh3_64(bytes) }
    }
}

/// What is wrong with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Another kind of file.
    #[error("it holds no packed weights")]
    Foreign,
    /// Written by another version.
    #[error("its format is of version {0}, this program's is {VERSION}")]
    Version(u32),
    /// Written for something else, and renamed.
    #[error("it holds packed weights of something else")]
    Key,
    /// Cut off, or longer than it says.
    #[error("its length is not what it says")]
    Length,
    /// Head and table are not as they were written.
    #[error("its checksum is wrong")]
    Checksum,
    /// A row of the table points out of the file, or into the piece before.
    #[error("a piece lies outside of it, or in another one")]
    Piece,
    /// A piece is not as it was written.
    #[error("the checksum of what lies from byte {0} on is wrong")]
    Content(usize),
}

/// The pieces of a file that was written for `key`. Reads all of it: a bit that has changed in a weight changes answers,
/// and nothing after this would notice.
///
/// # Errors
/// It is another file, or not as it was written.
pub fn parse(file: &[u8], key: Key) -> Result<Vec<Piece>, Damage> {
    let head = file.get(..HEAD_BYTES).ok_or(Damage::Foreign)?;
    if head[..8] != MAGIC {
        return Err(Damage::Foreign);
    }
    let version = u32::from_le_bytes(array(&head[8..12]));
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    let count = u32::from_le_bytes(array(&head[12..16])) as usize;
    let written_for = u128::from_le_bytes(array(&head[16..32]));
    let end = usize::try_from(u64::from_le_bytes(array(&head[32..40]))).map_err(|_| Damage::Length)?;
    let length = count.checked_mul(ROW_BYTES).and_then(|rows| end.checked_add(rows));
    if end < HEAD_BYTES || length != Some(file.len()) {
        return Err(Damage::Length);
    }
    let table = &file[end..];
    if u64::from_le_bytes(array(&head[CHECKED_BYTES..CHECKED_BYTES + 8])) != checksum(&head[..CHECKED_BYTES], table) {
        return Err(Damage::Checksum);
    }
    if written_for != key.0 {
        return Err(Damage::Key);
    }
    // In their order, so that nothing is read twice, whatever the table says.
    let mut next = HEAD_BYTES;
    let rows = table.chunks_exact(ROW_BYTES).map(|row| {
        let piece = piece(row, next..end)?;
        next = piece.bytes.end;
        Ok(piece)
    });
    let pieces: Vec<Piece> = rows.collect::<Result<_, _>>()?;
    match pieces.iter().find(|piece| xxh3_64(&file[piece.bytes.clone()]) != piece.sum) {
        Some(piece) => Err(Damage::Content(piece.bytes.start)),
        None => Ok(pieces),
    }
}

/// What a row of the table says of a piece that lies in `within`.
fn piece(row: &[u8], within: Range<usize>) -> Result<Piece, Damage> {
    let number = |at: usize| u64::from_le_bytes(array(&row[at..at + 8]));
    let place = |number: u64| usize::try_from(number).map_err(|_| Damage::Piece);
    let (start, len) = (place(number(8))?, place(number(16))?);
    let bytes = start..start.checked_add(len).ok_or(Damage::Piece)?;
    if !start.is_multiple_of(ALIGNMENT) || start < within.start || bytes.end > within.end {
        return Err(Damage::Piece);
    }
    Ok(Piece { layout: number(0), bytes, sum: number(24) })
}

/// The head of a file whose table starts at `end`, and that table.
pub(super) fn head_and_table(pieces: &[Piece], end: usize, key: Key) -> ([u8; HEAD_BYTES], Vec<u8>) {
    let mut table = Vec::with_capacity(pieces.len() * ROW_BYTES);
    for Piece { layout, bytes, sum } in pieces {
        for number in [*layout, bytes.start as u64, bytes.len() as u64, *sum] {
            table.extend(number.to_le_bytes());
        }
    }
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..16].copy_from_slice(&(pieces.len() as u32).to_le_bytes());
    head[16..32].copy_from_slice(&key.0.to_le_bytes());
    head[32..40].copy_from_slice(&(end as u64).to_le_bytes());
    let sum = checksum(&head[..CHECKED_BYTES], &table);
    head[CHECKED_BYTES..CHECKED_BYTES + 8].copy_from_slice(&sum.to_le_bytes());
    (head, table)
}

fn checksum(head: &[u8], table: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(head);
    hash.update(table);
    hash.digest()
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("a part of that length")
}
