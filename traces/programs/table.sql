-- Loads a table, indexes it, joins and groups it, and gives the space back.
PRAGMA journal_mode = MEMORY;
PRAGMA cache_size = -32768;
CREATE TABLE item (id INTEGER PRIMARY KEY, kind INTEGER, name TEXT, price REAL, note BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120000)
INSERT INTO item SELECT i, i * 7919 % 97, printf('item %08d', i * 104729 % 120000), i * 0.25, zeroblob(i % 160) FROM n;
CREATE INDEX item_kind ON item (kind, price);
CREATE INDEX item_name ON item (name);
CREATE TABLE kind AS SELECT kind AS id, count(*) AS items, sum(price) AS total FROM item GROUP BY kind;
SELECT count(*), round(sum(item.price), 2) FROM item JOIN kind ON kind.id = item.kind WHERE kind.items > 1200;
SELECT name FROM item ORDER BY note, name DESC LIMIT 3;
DELETE FROM item WHERE kind % 3 = 0;
VACUUM;
SELECT count(*) FROM item WHERE name LIKE '%77%';
