"""ALTER: the metadata, protocol, domains and files of a table with new properties, features, columns and rules."""
