"""How Spark is started, driven, and what its failures are reported as."""
