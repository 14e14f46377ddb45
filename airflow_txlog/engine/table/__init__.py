"""One version of a table, read: replay, snapshot, schema, partitions, predicates, statistics, time travel."""
