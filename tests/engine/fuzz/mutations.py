"""Damage, drawn from a seed: to bytes, to JSON lines and to values within them."""

from __future__ import annotations

import json
import random
from typing import Any

# What stands where something else should: wrong types, the ends of the integers, text that is hard to hold.
STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    1.5,
    1e308,
    "",
    "x",
    "\x00",
    "\ud800",
    "\U0010ffff" * 3,
    "9" * 5000,
    "../../etc/passwd",
    "file:///etc/passwd",
    "%ZZ%00",
    "null",
    "{",
    "[]",
    "NaN",
    [],
    {},
    [[]],
    {"": None},
    ["x", None, 3],
    {"path": "x"},
]


_PIECES = [b"\x00", b"\xff\xfe", b"\n", b"\r\n", b'"', b"{", b"}", b"\xed\xa0\x80", b","]


def damaged_bytes(data: bytes, chance: random.Random) -> bytes:
    """A few bytes flipped, cut out, doubled, or put in; or the end cut off."""
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        if not found:
            break
        at = chance.randrange(len(found))
        match chance.randrange(7):
            case 0:
                found[at] ^= 1 << chance.randrange(8)
            case 1:
                found[at] = chance.randrange(256)
            case 2:
                del found[at:]
            case 3:
                del found[at : at + chance.randrange(1, 16)]
            case 4:
                found[at:at] = found[at : at + chance.randrange(1, 64)]
            case 5:
                found[at:at] = chance.choice(
                    [b"\x00", b"\xff\xfe", b"\n", b"\r\n", b'"', b"{", b"}", b"\xed\xa0\x80", b","]
                )
            case 6:
                found[at : at + 8] = chance.randrange(2**64).to_bytes(8, "little")
    return bytes(found)


def damaged_json(text: str, chance: random.Random) -> str:
    """One JSON document with one to three of its values or keys changed, or its text damaged."""
    if chance.random() < 0.15:
        return chance.choice(
            [deep(chance), text[: chance.randrange(len(text) + 1)], text + text, text.replace(":", "=", 1)]
        )
    try:
        document = json.loads(text)
    except ValueError:
        return text + "x"
    for _ in range(chance.choice([1, 1, 2, 3])):
        document = damaged_value(document, chance)
    written = json.dumps(document)
    if chance.random() < 0.1:
        written = doubled_key(written, chance)
    return written


def damaged_lines(data: bytes, chance: random.Random) -> bytes:
    """A commit with lines damaged, doubled, dropped or in another order."""
    lines = data.decode().splitlines()
    at = chance.randrange(len(lines))
    match chance.randrange(6):
        case 0 | 1 | 2:
            lines[at] = damaged_json(lines[at], chance)
        case 3:
            lines.insert(at, damaged_json(lines[at], chance))
        case 4:
            del lines[at]
        case 5:
            chance.shuffle(lines)
            lines.append(lines[0])
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def damaged_value(node: Any, chance: random.Random) -> Any:
    """The value with one place in it changed."""
    if isinstance(node, dict) and node and chance.random() < 0.9:
        key = chance.choice(list(node))
        changed = dict(node)
        draw = chance.random()
        if draw < 0.08:
            del changed[key]
        elif draw < 0.14:
            changed[key + chance.choice(["", "x", "\x00", "é"])] = chance.choice(STRANGE)
        elif draw < 0.2 and len(node) > 1:
            other = chance.choice(list(node))
            changed[key], changed[other] = changed[other], changed[key]
        else:
            changed[key] = damaged_value(node[key], chance)
        return changed
    if isinstance(node, list) and node and chance.random() < 0.8:
        at = chance.randrange(len(node))
        return [*node[:at], damaged_value(node[at], chance), *node[at + 1 :]]
    if isinstance(node, str) and node[:1] in ("{", "[") and chance.random() < 0.7:
        return damaged_json(node, chance)
    if isinstance(node, str) and node and chance.random() < 0.4:
        at = chance.randrange(len(node))
        return node[:at] + chance.choice(["\x00", "%", "/", "..", "'", "é", " ", "\n", "-"]) + node[at:]
    return chance.choice(STRANGE)


def doubled_key(text: str, chance: random.Random) -> str:
    """The first object with a key that it has already."""
    return text.replace("{", '{"path":' + json.dumps(chance.choice(STRANGE)) + ',"path":1,', 1)


def deep(chance: random.Random) -> str:
    """Nested far deeper than anything that a log holds."""
    depth = chance.choice([50, 900, 5000, 100_000])
    return chance.choice(
        ["[" * depth, '{"add":' * depth, "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth]
    )
