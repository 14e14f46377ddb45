"""MERGE: its clauses, the pairs of rows that match, and the rows that the clauses produce."""
