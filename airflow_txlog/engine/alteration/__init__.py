"""ALTER: what new properties, features, columns and rules make of a table's metadata, protocol, domains and files."""
