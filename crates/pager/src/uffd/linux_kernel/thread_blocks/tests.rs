use super::*;
use crate::uffd::residency::Residency;

/// Killed: a program of which nothing could leave, because a page that stays was the next one, and
/// none before it were tried again and again.
#[test]
fn a_page_that_stays_is_not_tried_again_for_want_of_others() {
    let leave = |outcome| move || outcome;
    let again = (0, Err(EvictError::Again));
    assert_eq!(
        leave_before(0, 4, leave(again)),
        (0, Err(EvictError::Fixed))
    );
    assert_eq!(
        leave_before(2, 4, leave((2, Ok(())))),
        (2, Err(EvictError::Fixed))
    );
    assert_eq!(leave_before(2, 4, leave(again)), again);
    assert_eq!(leave_before(4, 4, leave((4, Ok(())))), (4, Ok(())));
}

#[test]
fn the_block_of_each_thread_stays() {
    let this = rustix::process::getpid();
    let lists = [
        std::thread::spawn(|| robust_list(rustix::thread::gettid()).unwrap())
            .join()
            .unwrap(),
        robust_list(rustix::thread::gettid()).unwrap(),
    ];
    assert_ne!(lists[0], lists[1]);
    let own = lists[1];
    let begin = PageNumber::containing(own - BLOCK_BEFORE);
    let end = PageNumber::containing(own - BLOCK_BEFORE + BLOCK_LENGTH - 1);
    let mut blocks = ThreadBlocks::default();
    let before = PageRange::new(PageNumber(begin.0 - 3), 4);
    let far = PageNumber(7);
    blocks.look_again(&[this], Some(far));
    let first_in = |range| blocks.first_in(range);
    assert!(before.contains(first_in(before).unwrap()));
    for page in [begin, PageNumber::containing(own), end] {
        assert_eq!(first_in(PageRange::new(page, 1)), Some(page));
    }
    assert_eq!(first_in(PageRange::new(PageNumber(1), 2)), None);
    assert_eq!(first_in(PageRange::new(PageNumber(6), 3)), Some(far));
}

/// A hang: of who joined a thread that had come and gone since the threads were looked at last, on
/// a page that left meanwhile.
#[test]
fn the_block_of_a_thread_that_nobody_saw_stays() {
    let mut blocks = ThreadBlocks::default();
    let page = PageNumber(0x7_f555_0000);
    // As glibc 2.36 leaves it: the page's last 2304 bytes are the block.
    let list = page.address() + PAGE_SIZE as u64 - 2304 + BLOCK_BEFORE;
    let stacks = PageRange::new(PageNumber(page.0 - 1), 3);
    let read = |id: u64, first: u64, offset: i64| {
        move |address: u64, bytes: &mut [u8]| {
            let words = match address + WORDS_BEFORE == list {
                true => [id, list, first, offset as u64],
                false => [0; 4],
            };
            let words = words.iter().flat_map(|word| word.to_le_bytes());
            words.zip(bytes).for_each(|(word, byte)| *byte = word);
            true
        }
    };
    blocks.look_at(stacks, &read(0, list, -32));
    assert_eq!(blocks.first_in(stacks), None, "before any thread was seen");
    blocks.note_place(list % PAGE_SIZE as u64);
    for other in [
        read(0, 0, -32),
        read(0, list, 0),
        read(u64::MAX, list, -32),
        read(0, -32_i64 as u64, -32),
    ] {
        blocks.look_at(stacks, &other);
        assert_eq!(blocks.first_in(stacks), None);
    }
    blocks.look_at(stacks, &|_, _| false);
    assert_eq!(blocks.first_in(stacks), None, "nothing can be read");
    // Of a thread that is gone, of one that is there, and of one with a mutex.
    for (id, first) in [(0, list), (77, list), (77, list + 4096)] {
        let mut blocks = ThreadBlocks {
            places: blocks.places.clone(),
            ..ThreadBlocks::default()
        };
        blocks.look_at(stacks, &read(id, first, -32));
        blocks.look_at(stacks, &read(id, first, -32));
        assert_eq!(blocks.pages, [page]);
    }
}

#[test]
fn the_list_of_a_thread_is_known_by_its_looks() {
    let memory = Residency::open(None, true).unwrap();
    let memory = memory.open_memory().unwrap();
    let read = move |address, bytes: &mut [u8]| is_read(&memory, address, bytes);
    let thread = std::thread::spawn(move || {
        let list = robust_list(rustix::thread::gettid()).unwrap();
        (list, is_list(list, &read), is_list(list + 64, &read))
    });
    let (list, is_one, is_another) = thread.join().unwrap();
    assert!(is_one && !is_another, "{list:#x}");
    let mut blocks = ThreadBlocks::default();
    let (done, over) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || over.recv());
    let this = rustix::process::getpid();
    assert!(has_threads(this));
    blocks.look(&[this], None);
    assert!(blocks.may_be_more(), "one may have begun just now");
    drop(done);
    thread.join().unwrap().unwrap_err();
    assert!(blocks.places.contains(&(list % PAGE_SIZE as u64)));
}

/// The thread pointer is the address of its block (ELF handling for thread-local storage, 3.4.6).
#[test]
fn a_block_lies_where_it_is_said_to() {
    let list = robust_list(rustix::thread::gettid()).unwrap();
    let block = list - BLOCK_BEFORE;
    // The first word of a block, and the third, are its own address.
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let mut words = [0; 24];
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut words, block).unwrap();
    for word in [&words[..8], &words[16..]] {
        assert_eq!(word, block.to_le_bytes());
    }
}

#[test]
fn a_thread_that_waits_has_a_stack_pointer_and_nobody_traces_it() {
    let this = rustix::process::getpid();
    assert!(!is_traced(this));
    let thread = Thread {
        process: this,
        id: rustix::thread::gettid(),
    };
    let local = 0_u8;
    // This thread runs while it asks; another one sees it wait.
    let seen = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            loop {
                if let Some(top) = stack_pointer(thread) {
                    break top;
                }
            }
        });
        other.join().unwrap()
    });
    let here = (&raw const local) as u64;
    assert!(here.abs_diff(seen) < 64 << 10, "{here:#x} {seen:#x}");
}
