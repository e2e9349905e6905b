"""A sort, a matrix product and a dictionary, about 350 MiB at the peak.

Prints digests of the results. The matrices hold small whole numbers, so that every sum is exact
and the order in which threads add does not show.
"""

import hashlib

import numpy


def digest(name, array):
    print(name, hashlib.blake2b(numpy.ascontiguousarray(array).data, digest_size=16).hexdigest())


def main():
    random = numpy.random.Generator(numpy.random.PCG64(20))

    numbers = random.random(12_000_000)
    order = numpy.argsort(numbers[:4_000_000], kind="stable")
    digest("order", order)
    numbers.sort()
    digest("sorted", numbers)
    assert (numbers[1:] >= numbers[:-1]).all()

    side = 1200
    left = random.integers(0, 1000, (side, side)).astype(numpy.float64)
    right = random.integers(0, 1000, (side, side)).astype(numpy.float64)
    digest("product", left @ right)

    table = {f"key {number}": number * number for number in range(1_000_000)}
    for number in range(0, 1_000_000, 3):
        del table[f"key {number}"]
    for number in random.permutation(1_000_000)[:300_000].tolist():
        expected = None if number % 3 == 0 else number * number
        assert table.get(f"key {number}") == expected
    print("table", len(table), sum(table.values()))

    digest("sorted again", numbers)


main()
