"""The form that is sent most often, one small file, read without the parser that reads all forms.

What is read here that parser reads as the same (`tests/service/test_forms.py`); anything that looks otherwise is left
to it.
"""

from __future__ import annotations

import re

_KIND = re.compile(rb"multipart/form-data; boundary=([0-9A-Za-z'()+_./:=?-]{1,70})")
_HEAD = re.compile(
    rb'(?i:Content-Disposition): form-data; name="([a-z_]{1,32})"; filename="([0-9A-Za-z._ -]{1,120})"'
    rb"(?:\r\n(?i:Content-Type): [0-9A-Za-z.+/-]{1,80})?\r\n\r\n"
)


def only_file(content_type: bytes, body: bytes) -> tuple[str, str, bytes] | None:
    """The field, file name and content of a form that holds one file and nothing else; None for any other body."""
    kind = _KIND.fullmatch(content_type)
    if kind is None:
        return None
    line = b"--" + kind[1]
    begin, end = line + b"\r\n", b"\r\n" + line + b"--\r\n"
    if not (body.startswith(begin) and body.endswith(end)):
        return None
    head, last = _HEAD.match(body, len(begin)), len(body) - len(end)
    if head is None or body.find(b"\r\n" + line, head.end()) != last:
        return None
    return head[1].decode("ascii"), head[2].decode("ascii"), body[head.end() : last]
