"""Frames of Polars: filled, grouped, joined, sorted, changed. Argument: rows."""

import sys

import polars as pl

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
number = pl.int_range(rows, eager=True)
item = pl.DataFrame({"id": number}).with_columns(
    key=pl.col("id") * 2654435761 % 1000003,
    name=pl.concat_str(pl.lit("name "), (pl.col("id") * 7919 % 1000003).cast(pl.String)),
    amount=pl.col("id") % 1000,
)


def ask(item):
    """Sums of integers alone: they do not depend on the order."""
    yield item.select(pl.len(), pl.sum("key", "amount"), least=pl.min("name"), most=pl.max("name"))
    part = item.group_by(part=pl.col("key") % 16).agg(pl.len(), pl.sum("amount"), pl.max("name"))
    yield part.sort("part")
    names = item.group_by("name").agg(n=pl.len(), s=pl.sum("id"))
    yield names.select(pl.len(), pl.sum("n"), pl.max("s"))
    tenth = item.filter(pl.col("id") % 10 == 0)
    pairs = item.join(tenth, on="key").with_columns(apart=pl.col("id") - pl.col("id_right"))
    yield pairs.select(pl.len(), pl.sum("apart"))
    placed = item.sort("name", "id", descending=[True, False]).with_row_index("place", 1)
    yield placed.select((pl.col("place").cast(pl.Int64) * pl.col("id") % 1000007).sum())


for answer in ask(item):
    print(answer.rows())
longer = pl.when(pl.col("id") % 5 == 0).then(pl.col("name") + " changed").otherwise(pl.col("name"))
item = item.with_columns(name=longer).filter(pl.col("id") % 7 != 0)
for answer in ask(item):
    print(answer.rows())
