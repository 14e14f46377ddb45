"""A file being written, invisible until it is whole.

The one invariant: only an explicit, successful `close` publishes. An exception, or an object that is merely dropped,
discards. That is why this is no `io.IOBase`: those close themselves when they are collected, and a checkpoint cut in
the middle would be published by the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any


class Output:
    """A writable binary file object, enough of one for pyarrow; use it as a context manager."""

    def __init__(
        self,
        sink: Any,
        publish: Callable[[], None],
        discard: Callable[[], None],
        drop: Callable[[], None] | None = None,
    ) -> None:
        """`publish` makes what is in `sink` appear, and closes it; `discard` closes it and leaves nothing behind.

        `drop`: in place of `discard` where it must not be called by the collector.
        """
        self._sink = sink
        self._publish = publish
        self._discard = discard
        self._drop = drop or discard
        self._is_closed = False

    @property
    def sink(self) -> Any:
        """What is being written to: where the store has one, pyarrow's own file, which needs no interpreter.

        Only for writing; what ends the file is `close` or `discard` of this object.
        """
        return self._sink

    @property
    def closed(self) -> bool:
        return self._is_closed

    def write(self, data: bytes) -> int:
        """Append bytes; a failure (a full disk) is raised, and then only `discard` is left to do."""
        self._sink.write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing to do: what is written is seen when the file is closed, not before."""

    def tell(self) -> int:
        return int(self._sink.tell())

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Publish. A second call does nothing; after an error nothing is published and nothing is left behind."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._publish()
        except BaseException:
            self._discard()
            raise

    def discard(self) -> None:
        """Drop what was written. After `close`, does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._discard()

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # An object that failed in its constructor has no state to drop.
        if not getattr(self, "_is_closed", True):
            self._is_closed = True
            with suppress(Exception):
                self._drop()
