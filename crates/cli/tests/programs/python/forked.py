"""Fills memory, forks children that each rewrite and read all of it, and ends before they do."""

import mmap
import os
import struct
import sys
import time

PAGE = 4096
size = int(sys.argv[1]) << 20
children = int(sys.argv[2])
rounds = int(sys.argv[3])

memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def write(version):
    for at in range(0, size, PAGE):
        struct.pack_into("QQ", memory, at, at, version)


def check(version):
    for at in range(0, size, PAGE):
        found = struct.unpack_from("QQ", memory, at)
        if found != (at, version):
            print("wrong:", hex(at), found, version, flush=True)
            os._exit(3)


write(1)
parent = os.getpid()
for child in range(children):
    if os.fork() == 0:
        check(1)
        for turn in range(rounds):
            version = 1000 * (child + 1) + turn
            write(version)
            check(version)
        while os.getppid() == parent:
            time.sleep(0.01)
        # Once more, without the parent.
        check(version)
        write(version + 1)
        check(version + 1)
        print("child: done", flush=True)
        os._exit(0)
check(1)
print("parent: done", flush=True)
os._exit(0)
