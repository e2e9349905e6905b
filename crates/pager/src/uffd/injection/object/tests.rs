use super::*;
use alloc::vec;

/// One read-only segment with a dynamic section and one relocation, one with code, one with data.
const DYNAMIC: usize = 0x200;
const TABLE: usize = 0x300;
const CODE: usize = 0x1000;
const DATA: usize = 0x2000;
const SIZE: usize = 0x2040;

fn put(bytes: &mut [u8], offset: usize, value: u64, length: usize) {
    bytes[offset..offset + length].copy_from_slice(&value.to_le_bytes()[..length]);
}

fn header(bytes: &mut [u8], index: usize, kind: u32, flags: u32, place: [u64; 4]) {
    let at = 64 + index * PROGRAM_HEADER_SIZE;
    let [offset, address, file_size, memory_size] = place;
    put(bytes, at, kind.into(), 4);
    put(bytes, at + 4, flags.into(), 4);
    put(bytes, at + 8, offset, 8);
    put(bytes, at + 16, address, 8);
    put(bytes, at + 32, file_size, 8);
    put(bytes, at + 40, memory_size, 8);
}

fn good() -> Vec<u8> {
    let mut bytes = vec![0u8; SIZE];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    put(&mut bytes, 16, ET_DYN.into(), 2);
    put(&mut bytes, 18, EM_X86_64.into(), 2);
    put(&mut bytes, 24, CODE as u64 + 16, 8);
    put(&mut bytes, 32, 64, 8);
    put(&mut bytes, 54, PROGRAM_HEADER_SIZE as u64, 2);
    put(&mut bytes, 56, 4, 2);
    header(&mut bytes, 0, PT_LOAD, 4, [0, 0, 0x400, 0x400]);
    let (code, data) = (CODE as u64, DATA as u64);
    header(&mut bytes, 1, PT_LOAD, 5, [code, code, 0x100, 0x100]);
    header(
        &mut bytes,
        2,
        PT_LOAD,
        6,
        [data, data + 0x800, 0x40, 0x1000],
    );
    header(&mut bytes, 3, PT_DYNAMIC, 4, [0, DYNAMIC as u64, 64, 64]);
    for (index, (tag, value)) in [
        (DT_RELA, TABLE as u64),
        (DT_RELASZ, RELOCATION_SIZE),
        (DT_RELAENT, RELOCATION_SIZE),
        (DT_NULL, 0),
    ]
    .into_iter()
    .enumerate()
    {
        put(&mut bytes, DYNAMIC + index * 16, tag, 8);
        put(&mut bytes, DYNAMIC + index * 16 + 8, value, 8);
    }
    put(&mut bytes, TABLE, data + 0x808, 8);
    put(&mut bytes, TABLE + 8, R_X86_64_RELATIVE, 8);
    put(&mut bytes, TABLE + 16, code + 16, 8);
    bytes[DATA] = 0xAA;
    bytes
}

fn error(change: impl FnOnce(&mut [u8])) -> ObjectError {
    let mut bytes = good();
    change(&mut bytes);
    Object::parse(&bytes).unwrap_err()
}

#[test]
fn an_object_is_placed() {
    let bytes = good();
    let object = Object::parse(&bytes).unwrap();
    assert_eq!(object.span(), 0x4000);
    assert_eq!(object.entry(), 0x1010);
    let pieces = object.place(0x7000_0000);
    let places: Vec<_> = pieces
        .iter()
        .map(|p| (p.start, p.length, p.access))
        .collect();
    assert_eq!(
        places,
        [
            (0x7000_0000, 0x1000, Access::Read),
            (0x7000_1000, 0x1000, Access::Execute),
            (0x7000_2000, 0x2000, Access::Write),
        ]
    );
    let data = &pieces[2];
    assert_eq!(data.content_address, 0x7000_2800);
    assert_eq!(data.content[0], 0xAA);
    assert_eq!(data.content[8..16], 0x7000_1010u64.to_le_bytes());
}

#[test]
fn what_only_relocations_write_is_read_only() {
    let mut bytes = good();
    put(&mut bytes, 56, 5, 2);
    let data = DATA as u64 + 0x800;
    header(
        &mut bytes,
        4,
        PT_GNU_RELRO,
        4,
        [DATA as u64, data, 0x40, 0x1000],
    );
    let object = Object::parse(&bytes).unwrap();
    assert_eq!(object.place(0)[2].access, Access::Read);
}

#[test]
fn other_files_are_refused() {
    assert_eq!(Object::parse(b"").unwrap_err(), ObjectError::Truncated);
    assert_eq!(error(|bytes| bytes[0] = 0), ObjectError::Format);
    assert_eq!(error(|bytes| bytes[4] = 1), ObjectError::Format);
    assert_eq!(error(|bytes| bytes[16] = 2), ObjectError::Format);
    assert_eq!(error(|bytes| bytes[18] = 3), ObjectError::Format);
    assert_eq!(error(|bytes| bytes[57] = 1), ObjectError::Format);
}

#[test]
fn wrong_segments_are_refused() {
    let field = |index: usize, offset: usize| 64 + index * PROGRAM_HEADER_SIZE + offset;
    for (offset, value) in [
        (field(1, 16), 0x800),
        (field(1, 16), u64::MAX),
        (field(1, 40), u64::MAX),
        (field(1, 40), 0),
        (field(1, 32), 0x101),
        (field(2, 40), SPAN_MAX),
    ] {
        assert_eq!(
            error(|bytes| put(bytes, offset, value, 8)),
            ObjectError::Segments,
            "{offset:#x} {value:#x}"
        );
    }
    assert_eq!(error(|bytes| bytes[field(1, 4)] = 7), ObjectError::Segments);
    assert_eq!(
        error(|bytes| put(bytes, field(1, 8), u64::MAX, 8)),
        ObjectError::Truncated
    );
    assert_eq!(
        error(|bytes| put(bytes, field(3, 16), 0x10_0000, 8)),
        ObjectError::Truncated
    );
}

#[test]
fn what_needs_a_loader_is_refused() {
    for kind in [PT_INTERP, PT_TLS] {
        let change = |bytes: &mut [u8]| header(bytes, 3, kind, 4, [0; 4]);
        assert_eq!(error(change), ObjectError::NeedsLoader);
    }
    for tag in [
        DT_NEEDED,
        DT_PLTRELSZ,
        DT_REL,
        DT_TEXTREL,
        DT_JMPREL,
        DT_RELR,
    ] {
        let change = |bytes: &mut [u8]| put(bytes, DYNAMIC + 48, tag, 8);
        assert_eq!(error(change), ObjectError::NeedsLoader);
    }
}

#[test]
fn relocations_stay_inside_the_data() {
    for (offset, value) in [
        (TABLE + 8, 6),
        (TABLE + 8, R_X86_64_RELATIVE | 1 << 32),
        (TABLE, DATA as u64 + 0x839),
        (TABLE, u64::MAX - 3),
        (TABLE, CODE as u64),
        (DYNAMIC + 40, 16),
        (DYNAMIC + 24, 25),
    ] {
        assert_eq!(
            error(|bytes| put(bytes, offset, value, 8)),
            ObjectError::Relocation,
            "{offset:#x} {value:#x}"
        );
    }
    let far = |bytes: &mut [u8]| put(bytes, DYNAMIC + 24, u64::MAX - 7, 8);
    assert_eq!(error(far), ObjectError::Truncated);
}

#[test]
fn the_entry_is_code() {
    for entry in [0, DATA as u64 + 0x800, CODE as u64 + 0x100, u64::MAX] {
        assert_eq!(error(|bytes| put(bytes, 24, entry, 8)), ObjectError::Entry);
    }
}

/// Whatever is in the file, the answer is an error or an object that stays inside its span.
#[test]
fn damaged_files_do_no_harm() {
    let original = good();
    for length in 0..original.len() {
        let _ = Object::parse(&original[..length]);
    }
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    for _ in 0..20_000 {
        let mut bytes = original.clone();
        for _ in 0..3 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Mostly in the headers, the dynamic section and the table.
            let offset = (random >> 33) as usize % (TABLE + 24);
            bytes[offset] = (random >> 17) as u8;
        }
        let Ok(object) = Object::parse(&bytes) else {
            continue;
        };
        let span = object.span();
        assert!(object.entry() < span && span <= SPAN_MAX + PAGE);
        for piece in object.place(0x1000_0000) {
            let end = piece.content_address + piece.content.len() as u64;
            assert!(piece.start >= 0x1000_0000 && piece.start + piece.length <= 0x1000_0000 + span);
            assert!(piece.content_address >= piece.start && end <= piece.start + piece.length);
        }
    }
}
