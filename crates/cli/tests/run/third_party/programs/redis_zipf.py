"""Redis: keys are read, one in twenty written, by Zipf's law. Arguments: keys of 1 KiB, requests.

Exponent and share are those of YCSB's workload B. Half of each value is random, as two to one is
about what compressors make of programs' memory. Every answer is compared.
"""

import hashlib
import itertools
import random
import shutil
import sys
import tempfile

from redis_server import Server, parts

KEYS = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
REQUESTS = int(sys.argv[2]) if len(sys.argv) > 2 else 600_000
PIPELINE = 100
EXPONENT = 0.99
WRITES = 0.05


def value(key, version):
    return hashlib.shake_128(b"%d %d" % (key, version)).digest(512) + bytes(512)


def name(key):
    return b"key:%d" % key


def main():
    chance = random.Random(1)
    # Which keys are used much has nothing to do with where they lie.
    ranked = chance.sample(range(KEYS), KEYS)
    weights = list(itertools.accumulate((rank + 1) ** -EXPONENT for rank in range(KEYS)))
    versions = [0] * KEYS
    wrong = written = 0
    directory = tempfile.mkdtemp()
    try:
        server = Server(directory)
        for part in parts(range(KEYS), PIPELINE):
            answers = server.send([[b"SET", name(key), value(key, 0)] for key in part])
            wrong += sum(answer != b"+OK" for answer in answers)
        for _ in range(0, REQUESTS, PIPELINE):
            requests, expected = [], []
            for key in chance.choices(ranked, cum_weights=weights, k=PIPELINE):
                if chance.random() < WRITES:
                    versions[key] += 1
                    requests.append([b"SET", name(key), value(key, versions[key])])
                    expected.append(b"+OK")
                else:
                    requests.append([b"GET", name(key)])
                    expected.append(value(key, versions[key]))
            written += expected.count(b"+OK")
            wrong += sum(answer != right for answer, right in zip(server.send(requests), expected))
        print("written", written, "wrong", wrong, "end", server.end())
    finally:
        shutil.rmtree(directory)


main()
