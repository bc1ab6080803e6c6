"""Imports, parses and builds lists: the allocation pattern of a small data script."""

import collections
import json
import random
import re


def main():
    random.seed(7)
    rows = [{"id": n, "name": f"row {n}", "values": [random.random() for _ in range(8)]} for n in range(20000)]
    text = json.dumps(rows)
    back = json.loads(text)
    words = collections.Counter(re.findall(r"[a-z]+", text))
    index = {row["name"]: row for row in back}
    kept = [row for row in index.values() if row["values"][0] > 0.5]
    del back, index
    grown = []
    for n in range(300000):
        grown.append(n * n)
    matrix = [bytearray(4096) for _ in range(4000)]
    for page in matrix[::3]:
        page[100] = 1
    print(len(text), len(kept), sum(words.values()), sum(grown) % 997, len(matrix))


main()
