"""Redis: BGSAVE while keys are written anew, then a restart from the file. Argument: keys of 1 KiB.

The file must hold exactly what was there when BGSAVE forked.
"""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

KEYS = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
PIPELINE = 200


def value(key, version):
    digest = hashlib.sha256(b"%d %d" % (key, version)).hexdigest().encode()
    return digest * 16


def request(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Server:
    def __init__(self, directory):
        self.path = os.path.join(directory, "socket")
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self.path, "--dir", directory]
            + ["--save", "", "--appendonly", "no", "--dbfilename", "saved.rdb"],
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + 120
        while True:
            try:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(self.path)
                break
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise SystemExit("redis-server does not accept")
                time.sleep(0.02)
        self.stream = self.socket.makefile("rb")
        while self.ask(b"PING") == b"-LOADING Redis is loading the dataset in memory":
            time.sleep(0.05)

    def ask(self, *words):
        self.socket.sendall(request(*words))
        return self.answer()

    def answer(self):
        line = self.stream.readline().rstrip(b"\r\n")
        if line[:1] == b"$" and line != b"$-1":
            return self.stream.read(int(line[1:]) + 2)[:-2]
        return line

    def write(self, keys, version):
        for first in range(0, len(keys), PIPELINE):
            part = keys[first : first + PIPELINE]
            self.socket.sendall(b"".join(request(b"SET", b"key:%d" % key, value(key, version)) for key in part))
            for _ in part:
                assert self.answer() == b"+OK"

    def wrong(self, version):
        wrong = 0
        for first in range(0, KEYS, PIPELINE):
            part = range(first, min(first + PIPELINE, KEYS))
            self.socket.sendall(b"".join(request(b"GET", b"key:%d" % key) for key in part))
            wrong += sum(self.answer() != value(key, version(key)) for key in part)
        return wrong

    def saving(self):
        return b"rdb_bgsave_in_progress:1" in self.ask(b"INFO", b"persistence")

    def end(self):
        self.socket.sendall(request(b"SHUTDOWN", b"NOSAVE"))
        return self.process.wait(60)


def main():
    directory = tempfile.mkdtemp()
    try:
        server = Server(directory)
        server.write(list(range(KEYS)), 1)
        print(server.ask(b"BGSAVE").decode())
        # Every third key changes while the child writes; some of them at least twice.
        changed = list(range(0, KEYS, 3))
        server.write(changed, 2)
        while server.saving():
            server.write(changed[:PIPELINE], 2)
        print(b"rdb_last_bgsave_status:ok" in server.ask(b"INFO", b"persistence"))
        print("in memory", server.ask(b"DBSIZE"), server.wrong(lambda key: 1 if key % 3 else 2))
        print("end", server.end())
        server = Server(directory)
        print("from the file", server.ask(b"DBSIZE"), server.wrong(lambda key: 1))
        print("end", server.end())
    finally:
        shutil.rmtree(directory)


main()
