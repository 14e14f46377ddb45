"""Many processes on one table, killed at random, and a checker that believes none of them."""
