"""Check an erasure report without the program that wrote it: its signature, its lists of objects, its completeness.

Run this file without the package: `python check_report.py REPORT PUBLIC_KEY`. It needs only Python's standard library.
The invariants: a report passes only if the key that the caller names has signed it and its lists; the verdicts are
counted again; and an object that cannot be read never passes. Source: RFC 8032, section 5.1.7 (Ed25519).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FORMAT = "airflow_txlog erasure report 1"
ALGORITHM = "Ed25519"
READ_TO_THE_END = ("absent", "rewritten")
PASSING = (*READ_TO_THE_END, "deleted")
LEFT = ("found", "statistic only", "not readable")
VERIFIED: Final = "verified"
OUT_OF_SCOPE: Final = "out of scope"
NOT_ERASED: Final = "not erased"
_DIGEST_DIGITS = 64

Read = Callable[[str], bytes]
"""Returns the content of a file beside the report, by its name. Raises OSError."""


@dataclass(kw_only=True)
class Checked:
    """The result of a check. `problems`: why the report proves nothing. `left`: why the erasure is not complete."""

    problems: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    num_tables: int = 0
    num_objects: int = 0
    request_id: str | None = None
    signed_by: str | None = None

    @property
    def is_authentic(self) -> bool:
        return not self.problems

    @property
    def is_complete(self) -> bool:
        """Whether the report is authentic, and proves that no object holds a subject."""
        return self.is_authentic and not self.left


def canonical(body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a report's body that are signed: JSON with sorted names, without spaces, in ASCII."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def check(document: bytes, public_key: str | None, read: Read) -> Checked:
    """Return the result of checking a report. `public_key`: 64 hexadecimal digits; None accepts no report."""
    found = Checked()
    try:
        whole = json.loads(document, parse_constant=_refused)
        body = whole["report"]
        signed = canonical(body)
    except (ValueError, TypeError, KeyError, RecursionError):
        found.problems.append("The report is no JSON document of a report: it is damaged, or not all of it is there.")
        return found
    found.problems += _of_signature(whole, signed, public_key, found)
    if found.problems:
        # The lists of a stranger may unpack to any size.
        return found
    try:
        if body["format"] != FORMAT:
            found.problems.append(f"The report is of another format than {FORMAT!r}, which this program checks.")
            return found
        found.request_id = body["request_id"]
        if all(table["state"] == OUT_OF_SCOPE for table in body["tables"]):
            found.left.append("The report verifies no table.")
        for table in body["tables"]:
            _check_table(table, read, found)
        if bool(body["complete"]) != (not found.left):
            found.problems.append("The report states another result than its lists of objects have.")
    except (ValueError, TypeError, LookupError, AttributeError, EOFError, OSError, zlib.error) as error:
        found.problems.append(f"The report lacks a part, or has one of another form ({type(error).__name__}).")
    return found


def _refused(name: str) -> None:
    raise ValueError(name)


def _of_signature(whole: Mapping[str, Any], signed: bytes, public_key: str | None, found: Checked) -> Iterator[str]:
    signature = whole.get("signature")
    if not isinstance(signature, dict):
        yield "The report is not signed."
        return
    try:
        found.signed_by = str(signature["public_key"])
        key, value = bytes.fromhex(signature["public_key"]), bytes.fromhex(signature["value"])
        is_known = signature["algorithm"] == ALGORITHM
    except (KeyError, TypeError, ValueError):
        yield "The report's signature has another form."
        return
    if not is_known or not is_signed_by(key, value, signed):
        yield "The signature is not that of this report: the report was changed after it was signed."
    if public_key is None:
        yield f"No public key was given. The report names {found.signed_by}; anybody can sign with a key of their own."
    elif public_key.strip().lower() != key.hex():
        yield f"The report is signed by {found.signed_by}, which is another key than the given one."


def _check_table(table: Mapping[str, Any], read: Read, found: Checked) -> None:
    """Recount the verdicts on a table's objects, and add those that do not pass to `left`."""
    name, state = table["table"], table["state"]
    found.num_tables += 1
    if state == OUT_OF_SCOPE:
        if not table["reason"]:
            found.problems.append(f"{name}: out of scope without a reason.")
        return
    if state != VERIFIED:
        found.left.append(f"{name}: {state} ({table['reason']}).")
        return
    if waits := table.get("num_waits", 0):
        found.left.append(f"{name}: objects that have to go are still there ({waits}).")
    verdicts: Counter[str] = Counter()
    digests = table["digests"]
    if digests is not None and len(_lines(digests, read, found)) != table["num_subjects"]:
        found.problems.append(f"{name}: there is not one digest for each subject.")
    for part in table["parts"]:
        for line in _lines(part, read, found):
            entry = json.loads(line)
            verdict = entry["verdict"]
            verdicts[verdict] += 1
            if verdict in READ_TO_THE_END and len(entry["digest"] or "") != _DIGEST_DIGITS:
                found.problems.append(f"{name}/{entry['path']}: called {verdict}, but was not read to its end.")
            elif verdict not in (*PASSING, *LEFT):
                found.problems.append(f"{name}/{entry['path']}: has no verdict that is known ({verdict}).")
            elif verdict in LEFT:
                found.left.append(f"{name}/{entry['path']}: {verdict} ({places_of(entry)}).")
    found.num_objects += sum(verdicts.values())
    if not verdicts:
        found.problems.append(f"{name}: the report has no verdict on any object.")
    if dict(verdicts) != table["verdicts"] or sum(verdicts.values()) != table["num_objects"]:
        found.problems.append(f"{name}: the list of objects has other verdicts than the report counts.")


def _lines(part: Mapping[str, Any], read: Read, found: Checked) -> list[bytes]:
    """Return the lines of a file that the report names; none, and a problem, if it is not the file that was signed."""
    name = part["name"]
    try:
        data = read(_plain(name))
    except OSError as error:
        found.problems.append(f"The list {name} cannot be read ({type(error).__name__}).")
        return []
    if hashlib.sha256(data).hexdigest() != part["sha256"]:
        found.problems.append(f"The list {name} was changed after it was signed.")
        return []
    return gzip.decompress(data).splitlines()


def _plain(name: str) -> str:
    if "/" in name or "\\" in name or name.startswith("."):
        raise OSError("outside of the report's folder")
    return name


def places_of(entry: Mapping[str, Any]) -> str:
    """Return the places of an object's traces, or why it cannot be read, for people."""
    return str(entry.get("reason") or ", ".join(trace["place"] for trace in entry.get("traces", ())))


# --- Ed25519 --------------------------------------------------------------------------------------------------------

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)

_Point = tuple[int, int, int, int]


def is_signed_by(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether an Ed25519 signature of a message is valid."""
    if len(public_key) != 32 or len(signature) != 64:
        return False
    key, start = _point(public_key), _point(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or start is None or scalar >= _ORDER:
        return False
    # A key of a small order accepts signatures of others.
    if _equal(_times(8, key), _ZERO):
        return False
    hashed = int.from_bytes(hashlib.sha512(signature[:32] + public_key + message).digest(), "little") % _ORDER
    return _equal(_times(scalar, _BASE), _sum(start, _times(hashed, key)))


def _point(data: bytes) -> _Point | None:
    """Return the point that 32 bytes encode; None for bytes that encode none."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _sum(one: _Point, other: _Point) -> _Point:
    a, b = (one[1] - one[0]) * (other[1] - other[0]) % _P, (one[1] + one[0]) * (other[1] + other[0]) % _P
    c, d = 2 * one[3] * other[3] * _D % _P, 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(number: int, point: _Point) -> _Point:
    total = _ZERO
    while number:
        if number & 1:
            total = _sum(total, point)
        point = _sum(point, point)
        number >>= 1
    return total


def _equal(one: _Point, other: _Point) -> bool:
    return (one[0] * other[2] - other[0] * one[2]) % _P == 0 and (one[1] * other[2] - other[1] * one[2]) % _P == 0


_ZERO: _Point = (0, 1, 1, 0)
_base = _point((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
assert _base is not None
_BASE: _Point = _base


# --- the command ----------------------------------------------------------------------------------------------------


def lines_of(found: Checked, most: int = 20) -> Iterator[str]:
    """Yield the result of a check for people, without characters that would change other lines."""
    yield from (
        "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line) for line in _lines_of(found, most)
    )


def _lines_of(found: Checked, most: int) -> Iterator[str]:
    for problem in found.problems:
        yield f"NOT PROVEN: {problem}"
    if found.is_authentic:
        yield f"The report of request {found.request_id} is signed by {found.signed_by}, and unchanged."
    for line in found.left[:most]:
        yield f"LEFT: {line}"
    if len(found.left) > most:
        yield f"… and {len(found.left) - most} more"
    end = "complete" if found.is_complete else "incomplete" if found.is_authentic else "not proven"
    yield f"{found.num_tables} tables, {found.num_objects} objects: {end}"


def main(arguments: Sequence[str]) -> int:
    """Check a report, print the result, and return the exit code: 0 complete, 1 not, 2 used wrongly."""
    if len(arguments) != 2:
        print("usage: check_report.py REPORT PUBLIC_KEY", file=sys.stderr)
        return 2
    place = Path(arguments[0])
    try:
        document = place.read_bytes()
    except OSError as error:
        print(f"{place} cannot be read: {error.strerror or type(error).__name__}", file=sys.stderr)
        return 1
    found = check(document, arguments[1], lambda name: (place.parent / name).read_bytes())
    for line in lines_of(found):
        print(line)
    return 0 if found.is_complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
