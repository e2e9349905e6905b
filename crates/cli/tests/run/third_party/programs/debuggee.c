/* Fills memory with known words, says so, and checks them when standard input ends: a debugger
   reads and changes them meanwhile. Argument: MiB. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static unsigned long *words;
static unsigned long count;

unsigned long word(unsigned long index) { return index * 0x9e3779b97f4a7c15ul + 1; }

unsigned long wrong_words(void) {
    unsigned long wrong = 0;
    for (unsigned long index = 0; index < count; index++)
        wrong += words[index] != word(index);
    return wrong;
}

void wait_for_debugger(int depth) {
    char byte;
    if (depth > 0) {
        wait_for_debugger(depth - 1);
        return;
    }
    printf("pid %d ready\n", getpid());
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
}

int main(int argc, char **argv) {
    count = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) << 17;
    words = malloc(count * sizeof *words);
    for (unsigned long index = 0; index < count; index++)
        words[index] = word(index);
    wait_for_debugger(3);
    printf("wrong %lu, changed to %lx\n", wrong_words(), words[count / 2]);
    return 0;
}
