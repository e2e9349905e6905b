"""A redis-server of one's own at a socket in a directory."""

import os
import socket
import subprocess
import time


def request(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def parts(keys, size):
    """Keys, so many at a time."""
    return (keys[first : first + size] for first in range(0, len(keys), size))


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

    def send(self, requests):
        """Requests in one go, each a list of words; the answers in the same order."""
        self.socket.sendall(b"".join(request(*words) for words in requests))
        return [self.answer() for _ in requests]

    def end(self):
        self.socket.sendall(request(b"SHUTDOWN", b"NOSAVE"))
        return self.process.wait(60)
