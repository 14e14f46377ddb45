"""MERGE: its clauses, the pairs of rows that match, and the rows that come of them."""
