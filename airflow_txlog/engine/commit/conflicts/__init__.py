"""Whether a commit may land after the commits that came before it, and what it must adapt then."""
