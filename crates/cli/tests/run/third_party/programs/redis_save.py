"""Redis: BGSAVE while keys are written anew, then a restart from the file. Argument: keys of 1 KiB.

The file must hold exactly what was there when BGSAVE forked.
"""

import hashlib
import shutil
import sys
import tempfile

from redis_server import Server, parts

KEYS = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
PIPELINE = 200


def value(key, version):
    digest = hashlib.sha256(b"%d %d" % (key, version)).hexdigest().encode()
    return digest * 16


def write(server, keys, version):
    for part in parts(keys, PIPELINE):
        answers = server.send([[b"SET", b"key:%d" % key, value(key, version)] for key in part])
        assert answers == [b"+OK"] * len(part)


def wrong(server, version):
    wrong = 0
    for part in parts(range(KEYS), PIPELINE):
        answers = server.send([[b"GET", b"key:%d" % key] for key in part])
        wrong += sum(answer != value(key, version(key)) for answer, key in zip(answers, part))
    return wrong


def saving(server):
    return b"rdb_bgsave_in_progress:1" in server.ask(b"INFO", b"persistence")


def main():
    directory = tempfile.mkdtemp()
    try:
        server = Server(directory)
        write(server, range(KEYS), 1)
        print(server.ask(b"BGSAVE").decode())
        # Every third key changes while the child writes; some of them at least twice.
        changed = range(0, KEYS, 3)
        write(server, changed, 2)
        while saving(server):
            write(server, changed[:PIPELINE], 2)
        print(b"rdb_last_bgsave_status:ok" in server.ask(b"INFO", b"persistence"))
        print("in memory", server.ask(b"DBSIZE"), wrong(server, lambda key: 1 if key % 3 else 2))
        print("end", server.end())
        server = Server(directory)
        print("from the file", server.ask(b"DBSIZE"), wrong(server, lambda key: 1))
        print("end", server.end())
    finally:
        shutil.rmtree(directory)


main()
