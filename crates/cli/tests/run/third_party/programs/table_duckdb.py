"""Tables of DuckDB in memory: filled, grouped, joined, sorted, changed. Argument: rows."""

import sys

import duckdb

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
base = duckdb.connect(":memory:", config={"threads": 2})
base.execute("SET preserve_insertion_order = true")
base.execute(
    "CREATE TABLE item AS SELECT i AS id, hash(i) % 1000003 AS key, 'name ' || (i * 7919 % 1000003) AS name,"
    " (i % 1000) / 8 AS amount FROM range(?) t(i)",
    [rows],
)
questions = [
    "SELECT count(*), sum(key), sum(amount), min(name), max(name) FROM item",
    "SELECT key % 16 AS part, count(*), sum(amount), max(name) FROM item GROUP BY part ORDER BY part",
    "SELECT count(*), sum(n), max(s) FROM (SELECT name, count(*) AS n, sum(id) AS s FROM item GROUP BY name)",
    "SELECT count(*), sum(a.id - b.id) FROM item a JOIN item b ON a.key = b.key WHERE b.id % 10 = 0",
    "SELECT sum(place * id % 1000007) FROM (SELECT id, row_number() OVER (ORDER BY name DESC, id) AS place FROM item)",
]
for question in questions:
    print(base.execute(question).fetchall())
base.execute("UPDATE item SET name = name || ' changed' WHERE id % 5 = 0")
base.execute("DELETE FROM item WHERE id % 7 = 0")
for question in questions[:2]:
    print(base.execute(question).fetchall())
