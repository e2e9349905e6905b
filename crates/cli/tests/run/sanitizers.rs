//! Programs that are built to find their own defects.

use crate::harness::{Run, compiled_c};

/// Two blocks are lost.
const LEAKS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { BLOCKS = 2000, SIZE = 20000 };
static char *block[BLOCKS];
int main(void) {
    unsigned wrong = 0;
    for (int each = 0; each < BLOCKS; each++) block[each] = memset(malloc(SIZE), each, SIZE);
    for (int each = 0; each < BLOCKS; each++) wrong += block[each][SIZE - 1] != (char)each;
    block[17] = block[1200] = NULL;
    printf("%u wrong\n", wrong);
    /* Nobody does it after the leaks were looked for. */
    fflush(stdout);
    return 0;
}
"#;

/// Lost: its library ended the program, because another object came before it.
#[test]
fn a_program_with_address_sanitizer_finds_its_leaks() {
    let program = compiled_c("cc", &["-fsanitize=address", "-g"], LEAKS);
    // The leaks are its status.
    let run = Run::far(program).cache_mib(16).memory_mib(256);
    let run = run.finish().expect_code(1).expect_far_pages();
    assert_eq!(run.output(), "0 wrong\n");
    let summary = "SUMMARY: AddressSanitizer: 40000 byte(s) leaked in 2 allocation(s).";
    assert!(run.stderr.contains(summary), "{}", run.stderr);
}
