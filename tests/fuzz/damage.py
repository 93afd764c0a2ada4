"""Mutations of file contents and of option values: what a slip, a wrong file or an adversary would give."""

import random

NUMBERS = (
    "0", "-1", "1", "2", "3.5", "nan", "inf", "-inf", "1e400", "1e-400", "1e30", "-0.0", "9" * 400, "9" * 5_000,
    "0x10", "1_000", "1e9", "4096", "65", "1000001", "true", "null", "007", "١٢", "½", "2147483648",
    "18446744073709551616",
)  # fmt: skip
WORDS = (
    "", " ", "x", "a40", "vicuna-7b", "paper", "..", "/", "~", "-", "--", "=", ",", "\t", "'", '"', "%s", "{}", "$(id)",
    "x" * 300, "x" * 10_000, "名前", "\x1b[31m", "a\nb", "\u202e", "\ufeff", "\udcff", "None", "NaN", "[[0]]", "[" * 3_000,
)  # fmt: skip
GRIDS = ("1", "1,2", "1..4", "8..1", "1..4:0", "1..4:x1", "1..999999999999", "1..", "..", ",", "1,,2", "1..64:x2", "1.5",
         "1..1000000:1", "16..112:16,1")  # fmt: skip
SNIPPETS = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r\n", b",", b'"', b"'", b"[", b"]", b"{", b"}", b"=", b"#", b"\\",
    b"nan", b"inf", b"-1", b"0", b"1e308", b"1e999", b"9" * 400, b"true", b"[" * 2_000, b"{" * 2_000, b"[[x]]",
    b"1979-05-27", b"a.b.c", b"\xe2\x82\xac", b"\xed\xb3\xbf", b"null", b"NaN",
)  # fmt: skip


def mutated(content: bytes, pick: random.Random) -> bytes:
    """`content` with one to four faults: bytes, tokens or lines changed, moved, doubled or lost."""
    for _ in range(pick.choice((1, 1, 1, 2, 4))):
        content = pick.choice((_bytes, _token, _token, _token, _line, _line, _cut, _splice))(content, pick)
    return content


def _bytes(content: bytes, pick: random.Random) -> bytes:
    changed = bytearray(content or b"x")
    for _ in range(pick.choice((1, 3, 20))):
        changed[pick.randrange(len(changed))] = pick.randrange(256)
    return bytes(changed)


def _token(content: bytes, pick: random.Random) -> bytes:
    """One word or number replaced, so that the file stays well-formed more often than not."""
    lines = content.split(b"\n")
    index = pick.randrange(len(lines))
    for mark in (b"=", b":", b","):
        parts = lines[index].split(mark)
        if len(parts) > 1:
            value = pick.choice(
                (*NUMBERS, *WORDS[:20], '"x"', "[]", "{}", "[1, 2]", '{ value = 1.0, source = "s" }')
            )
            parts[pick.randrange(len(parts))] = value.encode("utf-8", "surrogatepass")
            lines[index] = mark.join(parts)
            break
    return b"\n".join(lines)


def _line(content: bytes, pick: random.Random) -> bytes:
    lines = content.split(b"\n")
    index, other = pick.randrange(len(lines)), pick.randrange(len(lines))
    match pick.randrange(4):
        case 0:
            del lines[index]
        case 1:
            lines.insert(index, lines[other])
        case 2:
            lines[index], lines[other] = lines[other], lines[index]
        case _:
            lines[index:index] = lines[other : other + 5] * pick.choice((1, 50))
    return b"\n".join(lines)


def _cut(content: bytes, pick: random.Random) -> bytes:
    if pick.random() < 0.1:
        return b""
    start = pick.randrange(len(content) + 1)
    return (
        content[:start] if pick.random() < 0.7 else content[:start] + content[start + pick.randrange(200) :]
    )


def _splice(content: bytes, pick: random.Random) -> bytes:
    at = pick.randrange(len(content) + 1)
    return content[:at] + pick.choice(SNIPPETS) + content[at:]


PIECES = (
    b"\n", b" ", b"\t", b"[", b"]", b"[[0],", b"{", b'{"a":', b'"a":1,', b",", b"a.", b".a", b"(a|", b"(.*a)*", b"*a",
    b"a\n", b"0,", b"[],", b"\\", b'"', b"x{", b"= (", b"#", b"\x00", b"\xff", b"9", b"1e9,", b"[a]\n", b"a=1\n",
)  # fmt: skip
"""What readers may look at again and again."""


def swollen(content: bytes, pick: random.Random, size: int = 100_000) -> bytes:
    """`content` in which a piece, of its own or one that readers stumble over, is repeated up to the size."""
    if pick.random() < 0.5:
        piece = pick.choice(PIECES)
    else:
        lines = content.split(pick.choice((b"\n", b",", b" ", b'"')))
        piece = pick.choice(lines)[:2_000] + pick.choice((b"", b"\n", b",", b" "))
    room = max(size - len(content), size // 2)
    at = pick.choice((0, len(content), pick.randrange(len(content) + 1)))
    return content[:at] + piece * (room // max(len(piece), 1)) + content[at:]
