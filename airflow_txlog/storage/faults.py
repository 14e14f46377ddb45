"""Whether an error that came while a file was opened or read is about the file, or about the store.

Arrow reports damaged bytes as an OSError too: of that very class, and without a number. What a system or a store
raises has a number, or a class of its own: a timeout, a refused permission, a lost connection. The invariant: a fault
of the store is never taken for damaged data, whose message advises people to replace the file.
"""

from __future__ import annotations

import errno

# What a system answers for a name that no file can have, or that a folder has.
_NO_FILE = frozenset({errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR})


def is_about_bytes(error: Exception) -> bool:
    """Whether what was raised while a file was decoded says that its bytes are damaged; else the store failed."""
    return not isinstance(error, OSError) or (type(error) is OSError and error.errno is None)


def is_about_name(error: Exception) -> bool:
    """Whether what was raised as a file was opened says that no file can have this name; else the store failed."""
    return not isinstance(error, OSError) or error.errno in _NO_FILE
