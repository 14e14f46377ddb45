"""The operators: each describes one job on one table, has it run, and reports the result.

Import them from their modules: `write`, `merge`, `delete`, `checkpoint`, `vacuum`; `sources` builds what they read.
"""
