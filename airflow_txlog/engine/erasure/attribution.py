"""Attribution: to which of several requests the traces in an object belong.

All requests are searched for at once, in one pass. Only an object with traces is looked at again: the values in its
rows show most of the requests, and the others are searched for in halves, so an object without traces of them costs one
more search. The invariants: a request whose subject the object holds is never called absent from it, because the
search for a part of the requests finds at least what the searches for each of them find; and no path or place shows a
value of any request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.parquet.reading import DataFile
from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.erasure.digests import canonical_forms
from airflow_txlog.engine.erasure.former_names import with_former_names
from airflow_txlog.engine.erasure.object_verdicts import ObjectVerdict, verdict_on
from airflow_txlog.engine.erasure.parquet_traces import values_in_rows
from airflow_txlog.engine.erasure.traces import Trace
from airflow_txlog.engine.erasure.values.forms import MARK, Forms
from airflow_txlog.engine.erasure.values.plain import is_text
from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import InvalidInput
from airflow_txlog.storage.base import FileInfo, Store


@dataclass(frozen=True)
class Requests:
    """The subjects of one or more requests in the key column of a table. `forms`: those of all of them."""

    forms: Forms
    by_id: Mapping[str, Forms]

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        column: str,
        values: Mapping[str, Sequence[Any] | pa.ChunkedArray],
        *,
        is_part: bool = False,
    ) -> Self:
        """Return the requests with these values. `is_part`: they are not all requests of the task.

        Raises the errors of `Forms.of`, which name the request of several.
        """
        by_id = {}
        for request_id, given in values.items():
            try:
                by_id[request_id] = Forms.of(snapshot, column, given)
            except InvalidInput as error:
                if (len(values) == 1 and not is_part) or type(error) is not InvalidInput:
                    raise
                raise InvalidInput(f"request {request_id}: {error.message}", **error.facts) from error
        whole = pa.concat_arrays([forms.values for forms in by_id.values()]).unique()
        return cls(replace(next(iter(by_id.values())), values=whole), by_id)

    def check_shown(self, statements: Sequence[str]) -> None:
        """Raise InvalidInput if the id of a request or a statement names a subject: the report shows these texts.

        A number counts as an id only of its own request: other ids may have it by chance.
        """
        own = [each in forms.texts for each, forms in self.by_id.items()]
        found = [*map(any, zip(map(self.forms.in_text, self.by_id), own, strict=True))]
        found += map(self.forms.in_text, statements)
        if not any(found):
            return
        number, count = found.index(True), len(self.by_id)
        of_several = f", which is number {number + 1} of {count}," if count > 1 else ""
        what = f"The id of a request{of_several}" if number < count else "A text of declared or legal_hold"
        raise InvalidInput(
            f"{what} contains a subject. The report shows this text, and must show no subject. Nothing was read. "
            "Write it without personal data."
        )

    def named(self, table: DeltaTable) -> Self:
        """Return the requests with the names that the column had in the log of its table."""
        return self.also_named(with_former_names(table, self.forms).paths)

    def also_named(self, names: Iterable[str]) -> Self:
        """Return the requests with these names of the column, too."""
        # The first two are the logical and the physical one, which may be equal.
        paths = (*self.forms.paths, *sorted(set(names).difference(self.forms.paths)))
        by_id = {each: replace(forms, paths=paths) for each, forms in self.by_id.items()}
        return replace(self, forms=replace(self.forms, paths=paths), by_id=by_id)

    def forms_of(self, ids: Sequence[str]) -> Forms:
        """Return the forms of the subjects of some requests."""
        if len(ids) == 1:
            return self.by_id[ids[0]]
        values = pa.concat_arrays([self.by_id[each].values for each in ids]).unique()
        return replace(self.forms, values=values)

    @cached_property
    def of_value(self) -> Mapping[bytes, Collection[str]]:
        """The requests of each value, by its canonical form."""
        found: dict[bytes, list[str]] = {}
        for request_id, forms in self.by_id.items():
            for form in dict.fromkeys(canonical_forms(forms.key_values)):
                assert form is not None
                found.setdefault(form, []).append(request_id)
        return found

    @cached_property
    def of_string(self) -> Mapping[bytes, Collection[str]]:
        """The requests of each string that shows a value in a text."""
        found: dict[bytes, list[str]] = {}
        for request_id, forms in self.by_id.items():
            for string in forms.strings:
                found.setdefault(string, []).append(request_id)
        return found


@dataclass(frozen=True, slots=True)
class Holders:
    """The verdict on an object for each request whose subject it holds, and the verdict for all other requests."""

    by_request: Mapping[str, ObjectVerdict]
    others: ObjectVerdict

    def of(self, request_id: str) -> ObjectVerdict:
        return self.by_request.get(request_id, self.others)


@dataclass
class Attribution:
    """The search of objects with traces for the requests that these belong to."""

    store: Store
    requests: Requests
    _known: dict[tuple[str, str | None], Holders] = field(default_factory=dict)

    def of(self, target: FileInfo | str, found: ObjectVerdict, *, may_miss: bool = False) -> Holders:
        """Return who holds an object, or the name of a folder, on which the verdict for all requests is known.

        `may_miss`: leave out requests that neither a row nor a text of the object shows, if others are known.
        """
        ids = list(self.requests.by_id)
        if not found.traces:
            return Holders({}, found)
        if len(ids) == 1:
            return Holders({ids[0]: found}, found)
        # A digest of None is that of an object that was not read: it is searched each time.
        key = (target if isinstance(target, str) else target.path, found.digest)
        if found.digest is None or key not in self._known:
            self._known[key] = self._searched(target, found, ids, may_miss=may_miss)
        return self._known[key]

    def _searched(self, target: FileInfo | str, found: ObjectVerdict, ids: Sequence[str], *, may_miss: bool) -> Holders:
        held: dict[str, ObjectVerdict] = {}
        likely: Collection[str] = ()
        with suppress(OSError):
            # It may be gone since; then the search finds nothing.
            held, likely = self._witnesses(target, found)
        others: ObjectVerdict | None = None
        parts = [[each] for each in likely if each not in held]
        if not may_miss or not (held or likely):
            parts.append([each for each in ids if each not in held and each not in likely])
        while parts:
            part = parts.pop()
            if not part:
                continue
            verdict = self._search(target, found, self.requests.forms_of(part))
            if not verdict.traces:
                others = verdict if others is None or others.passes else others
            elif len(part) == 1:
                held[part[0]] = verdict
            else:
                parts += [part[: len(part) // 2], part[len(part) // 2 :]]
        if not held:
            # Another object has taken its place meanwhile.
            return Holders({}, found)
        if others is None:
            others = replace(found, verdict="absent" if found.reason is None else "not readable", traces=())
        return Holders(held, others)

    def _search(self, target: FileInfo | str, found: ObjectVerdict, forms: Forms) -> ObjectVerdict:
        if isinstance(target, str):
            holds = forms.in_path(target)
            return found if holds else replace(found, verdict="absent", traces=())
        verdict = verdict_on(self.store, target, forms)
        return replace(verdict, path=found.path, traces=tuple(map(self._marked, verdict.traces)))

    def _marked(self, trace: Trace) -> Trace:
        """Return a trace of one request whose place shows no value of another one."""
        return replace(trace, place=MARK) if self.requests.forms.holding([trace.place])[0] else trace

    # --- witnesses --------------------------------------------------------------------------------------------------

    def _witnesses(
        self, target: FileInfo | str, found: ObjectVerdict
    ) -> tuple[dict[str, ObjectVerdict], Collection[str]]:
        """Return the requests that are certain to have a row in a data file, and those that an object likely holds."""
        if isinstance(target, str) or found.digest is None:
            return {}, ()
        if found.method != "decoded":
            with self.store.open_input(target.path) as source:
                strings = self.requests.forms.strings_in(source.read())
            return {}, self._requests_of(strings)
        counts = self._in_rows(DataFile(store=self.store, path=target.path, size_bytes=target.size_bytes))
        if target.path.startswith(f"{LOG_DIRECTORY}/"):
            # The rows of a checkpoint hold statistics too.
            return {}, dict.fromkeys(request_id for request_id, _ in counts)
        traces: dict[str, list[Trace]] = {}
        for (request_id, path), count in counts.items():
            place = f"rows, column {self.requests.forms.without_values(path)!r}"
            traces.setdefault(request_id, []).append(Trace(place, "value", count))
        return {each: replace(found, verdict="found", traces=tuple(own)) for each, own in traces.items()}, ()

    def _in_rows(self, file: DataFile) -> Counter[tuple[str, str]]:
        """Return how many rows hold a value of a request in a column, by the id and the path."""
        found: Counter[tuple[str, str]] = Counter()
        forms = self.requests.forms
        for path, is_key, values in values_in_rows(file, forms):
            counts: dict[str, int] = {}
            if is_key:
                grouped = pc.value_counts(values.filter(forms.are_values(values)))
                # A value that a column stores in another way than the table is left to the search.
                for form, count in zip(canonical_forms(grouped.field(0)), grouped.field(1).to_pylist(), strict=True):
                    for request_id in self.requests.of_value.get(form or b"", ()):
                        counts[request_id] = counts.get(request_id, 0) + count
            elif is_text(values.type):
                for string, count in forms.counts_in(values).items():
                    for request_id in self.requests.of_string.get(string, ()):
                        counts[request_id] = max(count, counts.get(request_id, 0))
            found.update({(request_id, path): count for request_id, count in counts.items()})
        return found

    def _requests_of(self, strings: Iterable[bytes]) -> Collection[str]:
        return dict.fromkeys(each for string in strings for each in self.requests.of_string.get(string, ()))
