// Runs the probes, or those whose numbers are given: `probe 3 11`.
#include "rig.h"

#include <stdlib.h>

int main(int argc, char **argv) {
    static void (*const probes[])(void) = {
        probe_order,   probe_nobody,  probe_no_receive, probe_too_long, probe_refused,
        probe_partial, probe_slots,   probe_overrun,    probe_shared,   probe_ends,
        probe_local,   probe_states,  probe_operations,
    };
    const int count = sizeof probes / sizeof probes[0];
    rig_open();
    for (int i = 0; i < count; i++) {
        bool wanted = argc == 1;
        for (int j = 1; j < argc; j++)
            wanted |= atoi(argv[j]) == i + 1;
        if (wanted)
            probes[i]();
    }
    return 0;
}
