"""DELETE, UPDATE and MERGE: one way from verdicts on rows to a commit, that never starts over.

`operation` is what each of them (`delete`, `delete_keys`, `update`, `merge`) must know of itself, and `pipeline` is one
round over it: `verdicts` are what a scan yields, `staging` says what is still to be staged (copies, `images`,
`changes`) or masked (`masking`), `memory` holds what was found and staged, `manifest` writes that down, and `sameness`
says when none of it may be kept.
"""
