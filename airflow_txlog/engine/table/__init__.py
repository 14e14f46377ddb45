"""Reading one version of a table: replay, snapshot, schema, partitions, predicates, statistics, time travel."""
