"""Types, schemas, column mapping, widening, evolution, rules, features and properties of a table."""
