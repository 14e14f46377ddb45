"""DELETE, UPDATE and MERGE: one way from verdicts on rows to a commit, that never starts over.

`memory` holds what a job has found and staged, `manifest` writes it down, `sameness` says when none of it may be
kept, `verdicts` are what a scan yields, `work` says what is to be staged, and `pipeline` is one round over all of them.
"""
