"""Tables made by the reference implementation, delta-spark, and what it reads from them (see `generate`)."""
