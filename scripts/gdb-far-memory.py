"""For gdb on a program under Legato:  (gdb) source scripts/gdb-far-memory.py

`fetch EXPRESSION` brings the memory of an object from the memory nodes. gdb reads and writes through
/proc/PID/mem, and for that path the kernel does not wait for a fault on far memory; it fails, and
gdb says "Cannot access memory". process_vm_readv(2) does wait.
"""

import ctypes

import gdb


class IoVector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Fetch(gdb.Command):
    """fetch EXPRESSION: bring an object, such as table[7] or *node, from far memory."""

    def __init__(self):
        super().__init__("fetch", gdb.COMMAND_DATA)

    def invoke(self, expression, from_tty):
        value = gdb.parse_and_eval(expression)
        if value.address is None:
            raise gdb.GdbError("this is not in memory")
        start, size = int(value.address), value.type.sizeof
        buffer = ctypes.create_string_buffer(size)
        here = IoVector(ctypes.addressof(buffer), size)
        there = IoVector(start, size)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.process_vm_readv.restype = ctypes.c_ssize_t
        pid = gdb.selected_inferior().pid
        done = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if done != size:
            raise gdb.GdbError(f"cannot fetch it: errno {ctypes.get_errno()}")


Fetch()
