-- Tables in memory, indexes, a join, aggregates and a vacuum. The shell sets @rows first.
CREATE TABLE item (id INTEGER PRIMARY KEY, key INTEGER, name TEXT, amount REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < @rows)
INSERT INTO item SELECT i, (i * 2654435761) % 4294967296, 'name ' || (i * 7919 % 1000003), (i % 1000) / 8.0 FROM n;
CREATE INDEX item_key ON item (key);
CREATE INDEX item_name ON item (name);
SELECT count(*), sum(key), sum(amount), min(name), max(name) FROM item;
SELECT count(*), sum(length(name)), sum(id) FROM (SELECT * FROM item ORDER BY name DESC, id LIMIT 100000);
SELECT key % 16 AS part, count(*), sum(amount), max(name) FROM item GROUP BY part ORDER BY part;
SELECT count(*), sum(a.id - b.id) FROM item a JOIN item b ON a.key = (b.id * 2654435761) % 4294967296 WHERE b.id % 3 = 0;
UPDATE item SET name = name || ' changed' WHERE id % 5 = 0;
DELETE FROM item WHERE id % 7 = 0;
SELECT count(*), sum(length(name)), sum(amount) FROM item;
VACUUM;
PRAGMA integrity_check;
SELECT count(*), sum(key) FROM item WHERE key BETWEEN 1000000000 AND 3000000000;
