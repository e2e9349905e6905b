//! The agent's shared object, read strictly: segments, relative relocations, an entry, and nothing
//! that would need a dynamic loader (System V gABI; x86-64 psABI, section 4.4).

use alloc::vec::Vec;

const MAGIC: &[u8] = b"\x7fELF";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const ET_DYN: u16 = 3;
const EM_X86_64: u16 = 62;
const PROGRAM_HEADER_SIZE: usize = 56;
const PROGRAM_HEADERS_MAX: usize = 32;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_TLS: u32 = 7;
const PT_GNU_RELRO: u32 = 0x6474_E552;
const PF_X: u32 = 1;
const PF_W: u32 = 2;

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_PLTRELSZ: u64 = 2;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_RELAENT: u64 = 9;
const DT_REL: u64 = 17;
const DT_TEXTREL: u64 = 22;
const DT_JMPREL: u64 = 23;
const DT_RELR: u64 = 36;
const DYNAMIC_ENTRY_SIZE: usize = 16;

const RELOCATION_SIZE: u64 = 24;
const R_X86_64_RELATIVE: u64 = 8;

const PAGE: u64 = legato_base::PAGE_SIZE as u64;
/// Address space of a whole object at most.
const SPAN_MAX: u64 = 64 << 20;

/// The object cannot be placed in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    #[error("it is cut off")]
    Truncated,
    #[error("it is no x86-64 shared object")]
    Format,
    #[error("its segments overlap or are out of bounds")]
    Segments,
    #[error("it needs a dynamic loader")]
    NeedsLoader,
    #[error("one of its relocations is of an unknown kind or out of bounds")]
    Relocation,
    #[error("it has no entry")]
    Entry,
}

/// What the pages of a segment allow, once it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    Execute,
}

/// An object as read from its file; addresses are relative to where it will be placed.
#[derive(Clone, Debug)]
pub struct Object<'a> {
    segments: Vec<Segment<'a>>,
    relocations: Vec<Relocation>,
    entry: u64,
}

#[derive(Clone, Copy, Debug)]
struct Segment<'a> {
    address: u64,
    size: u64,
    content: &'a [u8],
    access: Access,
}

#[derive(Clone, Copy, Debug)]
struct Relocation {
    address: u64,
    addend: u64,
}

/// A part of an object that has been placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Whole pages.
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) access: Access,
    /// Where the content begins; what is not content is zeros.
    pub(super) content_address: u64,
    pub(super) content: Vec<u8>,
}

impl<'a> Object<'a> {
    /// # Errors
    /// If anything in it is not as this loader needs it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ObjectError> {
        let identification = slice(bytes, 0, 16)?;
        if !identification.starts_with(MAGIC)
            || identification[4] != CLASS_64
            || identification[5] != LITTLE_ENDIAN
            || half(bytes, 16)? != ET_DYN
            || half(bytes, 18)? != EM_X86_64
            || usize::from(half(bytes, 54)?) != PROGRAM_HEADER_SIZE
        {
            return Err(ObjectError::Format);
        }
        let headers = ProgramHeader::all(bytes)?;
        if headers
            .iter()
            .any(|header| matches!(header.kind, PT_INTERP | PT_TLS))
        {
            return Err(ObjectError::NeedsLoader);
        }
        let segments = segments(bytes, &headers)?;
        let object = Self {
            relocations: relocations(&segments, &headers)?,
            entry: long(bytes, 24)?,
            segments,
        };
        if object
            .segment_of(object.entry, 1, Access::Execute)
            .is_none()
        {
            return Err(ObjectError::Entry);
        }
        Ok(object)
    }

    /// Bytes of address space, whole pages.
    pub(super) fn span(&self) -> u64 {
        let last = self.segments.last();
        last.map_or(0, |last| (last.address + last.size).next_multiple_of(PAGE))
    }

    pub(super) const fn entry(&self) -> u64 {
        self.entry
    }

    /// The object as it is when it begins at `base`.
    pub(super) fn place(&self, base: u64) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = self.segments.iter().map(|one| one.place(base)).collect();
        for relocation in &self.relocations {
            let address = base + relocation.address;
            let value = base.wrapping_add(relocation.addend).to_le_bytes();
            for piece in &mut pieces {
                let inside = address.checked_sub(piece.content_address);
                let offset = inside.map_or(usize::MAX, |offset| offset as usize);
                let end = offset.saturating_add(value.len());
                if let Some(target) = piece.content.get_mut(offset..end) {
                    target.copy_from_slice(&value);
                }
            }
        }
        pieces
    }

    /// The segment whose content has these bytes, if it is of this access.
    fn segment_of(&self, address: u64, length: u64, access: Access) -> Option<&Segment<'a>> {
        segment_of(&self.segments, address, length).filter(|segment| segment.access == access)
    }
}

impl Segment<'_> {
    fn place(&self, base: u64) -> Piece {
        let start = self.address & !(PAGE - 1);
        Piece {
            start: base + start,
            length: (self.address + self.size).next_multiple_of(PAGE) - start,
            access: self.access,
            content_address: base + self.address,
            content: self.content.to_vec(),
        }
    }
}

fn segment_of<'s, 'a>(
    segments: &'s [Segment<'a>],
    address: u64,
    length: u64,
) -> Option<&'s Segment<'a>> {
    segments.iter().find(|segment| {
        let inside = address.checked_sub(segment.address);
        let end = inside.and_then(|offset| offset.checked_add(length));
        end.is_some_and(|end| end <= segment.content.len() as u64)
    })
}

#[derive(Clone, Copy, Debug)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_size: u64,
    memory_size: u64,
}

impl ProgramHeader {
    fn all(bytes: &[u8]) -> Result<Vec<Self>, ObjectError> {
        let offset = usize::try_from(long(bytes, 32)?).map_err(|_| ObjectError::Truncated)?;
        let count = usize::from(half(bytes, 56)?);
        if count > PROGRAM_HEADERS_MAX {
            return Err(ObjectError::Format);
        }
        let table = slice(bytes, offset, count * PROGRAM_HEADER_SIZE)?;
        table
            .chunks_exact(PROGRAM_HEADER_SIZE)
            .map(|header| {
                Ok(Self {
                    kind: word(header, 0)?,
                    flags: word(header, 4)?,
                    offset: long(header, 8)?,
                    address: long(header, 16)?,
                    file_size: long(header, 32)?,
                    memory_size: long(header, 40)?,
                })
            })
            .collect()
    }

    fn content<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], ObjectError> {
        let offset = usize::try_from(self.offset).map_err(|_| ObjectError::Truncated)?;
        let size = usize::try_from(self.file_size).map_err(|_| ObjectError::Truncated)?;
        slice(bytes, offset, size)
    }

    /// Written only by relocations: what is left of the page after the range is not used.
    fn covers(&self, load: &Self) -> bool {
        let end = |header: &Self| header.address.saturating_add(header.memory_size);
        self.kind == PT_GNU_RELRO && self.address <= load.address && end(self) >= end(load)
    }
}

fn segments<'a>(
    bytes: &'a [u8],
    headers: &[ProgramHeader],
) -> Result<Vec<Segment<'a>>, ObjectError> {
    let mut segments: Vec<Segment<'a>> = Vec::new();
    let mut free_from = 0;
    for header in headers.iter().filter(|header| header.kind == PT_LOAD) {
        let end = header.address.checked_add(header.memory_size);
        let end = end
            .filter(|&end| end <= SPAN_MAX)
            .ok_or(ObjectError::Segments)?;
        let access = match (header.flags & PF_W != 0, header.flags & PF_X != 0) {
            (true, true) => return Err(ObjectError::Segments),
            (true, false) if headers.iter().any(|relro| relro.covers(header)) => Access::Read,
            (true, false) => Access::Write,
            (false, true) => Access::Execute,
            (false, false) => Access::Read,
        };
        let overlaps = header.address & !(PAGE - 1) < free_from;
        if overlaps || header.memory_size == 0 || header.file_size > header.memory_size {
            return Err(ObjectError::Segments);
        }
        free_from = end.next_multiple_of(PAGE);
        segments.push(Segment {
            address: header.address,
            size: header.memory_size,
            content: header.content(bytes)?,
            access,
        });
    }
    Ok(segments)
}

fn relocations(
    segments: &[Segment<'_>],
    headers: &[ProgramHeader],
) -> Result<Vec<Relocation>, ObjectError> {
    let Some(dynamic) = headers.iter().find(|header| header.kind == PT_DYNAMIC) else {
        return Ok(Vec::new());
    };
    let (mut table, mut size) = (0, 0);
    let entries = content_at(segments, dynamic.address, dynamic.memory_size)?;
    for entry in entries.chunks_exact(DYNAMIC_ENTRY_SIZE) {
        let value = long(entry, 8)?;
        match long(entry, 0)? {
            DT_NULL => break,
            DT_RELA => table = value,
            DT_RELASZ => size = value,
            DT_RELAENT if value != RELOCATION_SIZE => return Err(ObjectError::Relocation),
            DT_NEEDED | DT_PLTRELSZ | DT_REL | DT_TEXTREL | DT_JMPREL | DT_RELR => {
                return Err(ObjectError::NeedsLoader);
            }
            _ => {}
        }
    }
    if size == 0 {
        return Ok(Vec::new());
    }
    let table = content_at(segments, table, size)?.chunks_exact(RELOCATION_SIZE as usize);
    if !table.remainder().is_empty() {
        return Err(ObjectError::Relocation);
    }
    table
        .map(|relocation| parse_relocation(segments, relocation))
        .collect()
}

fn parse_relocation(segments: &[Segment<'_>], bytes: &[u8]) -> Result<Relocation, ObjectError> {
    let relocation = Relocation {
        address: long(bytes, 0)?,
        addend: long(bytes, 16)?,
    };
    let target = segment_of(segments, relocation.address, 8);
    let is_data = target.is_some_and(|segment| segment.access != Access::Execute);
    if long(bytes, 8)? != R_X86_64_RELATIVE || !is_data {
        return Err(ObjectError::Relocation);
    }
    Ok(relocation)
}

/// Bytes of the object by their address.
fn content_at<'a>(
    segments: &[Segment<'a>],
    address: u64,
    length: u64,
) -> Result<&'a [u8], ObjectError> {
    let segment = segment_of(segments, address, length).ok_or(ObjectError::Truncated)?;
    slice(
        segment.content,
        (address - segment.address) as usize,
        length as usize,
    )
}

fn slice(bytes: &[u8], offset: usize, length: usize) -> Result<&[u8], ObjectError> {
    let end = offset.checked_add(length).ok_or(ObjectError::Truncated)?;
    bytes.get(offset..end).ok_or(ObjectError::Truncated)
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], ObjectError> {
    let bytes = slice(bytes, offset, N)?;
    bytes.try_into().map_err(|_| ObjectError::Truncated)
}

fn half(bytes: &[u8], offset: usize) -> Result<u16, ObjectError> {
    array(bytes, offset).map(u16::from_le_bytes)
}

fn word(bytes: &[u8], offset: usize) -> Result<u32, ObjectError> {
    array(bytes, offset).map(u32::from_le_bytes)
}

fn long(bytes: &[u8], offset: usize) -> Result<u64, ObjectError> {
    array(bytes, offset).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests;
