"""Code that runs in a Spark task: callables for `mapInArrow` and its siblings, and the plans that they are given."""
