"""Java's property files: the rules one by one, and Java itself as the judge."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.mm2.clients import login
from mirror.mm2.properties import BadProperties, Property, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a:b\nc d\n e\t=\tf ", {"a": "b", "c": "d", "e": "f "}),
        ("alone", {"alone": ""}),
        ("# no\n  ! no\n\n \t\na=1", {"a": "1"}),
        ("# no \\\na=1", {"a": "1"}),
        ("a=1,\\\n    2,\\\r\n\t3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n#b=2", {"a": "1#b=2"}),
        ("\\\n#b=2\na=1", {"a": "1"}),
        ("a\\ b\\:c\\=d=e", {"a b:c=d": "e"}),
        ("a==b", {"a": "=b"}),
        ("a=\\u20ac\\t\\n\\r\\f\\q\\\\", {"a": "€\t\n\r\fq\\"}),
        ("a=1\ra=2\r\na=3", {"a": "3"}),
        ("a=1\\", {"a": "1"}),
        ("A->B.enabled = true", {"A->B.enabled": "true"}),
        ("", {}),
    ],
)
def test_rules(text: str, expected: dict[str, str]) -> None:
    assert {one.key: one.value for one in parse(text.encode("iso-8859-1"))} == expected


def test_lines_are_those_where_a_property_begins() -> None:
    assert parse(b"# c\na=1,\\\n2\n\nb=3") == [Property("a", "1,2", 2), Property("b", "3", 5)]


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "\\u=1", "x=1\n  b=\\u123"])
def test_what_java_refuses(text: str) -> None:
    with pytest.raises(BadProperties, match="malformed") as caught:
        parse(text.encode())
    assert caught.value.line == len(text.splitlines())


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_with_a_line(data: bytes) -> None:
    try:
        found = parse(data)
    except BadProperties as problem:
        assert 1 <= problem.line <= 1 + data.count(b"\n") + data.count(b"\r")  # noqa: PT017 -- refusing is one of two good ends
        return
    assert [one.line for one in found] == sorted({one.line for one in found})


def written(key: str, value: str, random: Random) -> str:
    """A property in one of the ways that Java reads it."""

    def escaped(text: str, special: str) -> str:
        out = ""
        for one, following in zip(text, text[1:] + " ", strict=False):
            if ord(one) > 126 or random.random() < 0.05:
                units = one.encode("utf-16-be")
                out += "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
            elif one in "\t\n\r\f":
                out += {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[one]
            else:
                out += ("\\" if one in special or (random.random() < 0.02 and one not in "utnrf") else "") + one
            if following != " " and random.random() < 0.03:  # blanks behind a continuation do not count
                out += "\\\n  "
        return out

    held = escaped(value, "\\=:")
    first = "\\" if held[:1] == " " else ""
    return escaped(key, "\\ =:#!") + random.choice(["=", " = ", ":", " : ", "\t"]) + first + held


@given(
    st.dictionaries(
        st.from_regex(r"[a-z#!=: \\é€.>-]{1,12}", fullmatch=True), st.text("ab c\t\\=:#!é€\n", max_size=12)
    ),
    st.randoms(use_true_random=False),
)
def test_what_is_written_is_read_back(properties: dict[str, str], random: Random) -> None:
    text = "\n".join(written(key, value, random) for key, value in properties.items())
    assert {one.key: one.value for one in parse(text.encode("iso-8859-1"))} == properties


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    """Java's classes, without Spark."""
    from py4j import java_gateway, protocol
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway()  # type: ignore[no-untyped-call]  # PySpark ships no types for it
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # a session of Spark SQL, where there was one, asks its JVM about errors
        patch.setattr(java_gateway, "get_return_value", protocol.get_return_value)
        yield gateway.jvm
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(20)


@pytest.mark.spark
def test_java_reads_the_same(java: Any) -> None:
    random = Random(7)
    pieces = ["a", "b", "=", ":", "\\", "\\\\", "#", "!", "\t", "\f", "\n", "\r", "\r\n", "\\\n", " ", "  "]
    pieces += ["\\u0041", "\\u00", "\\t", "\\n", "\xe9", "k=v", "enabled"]
    refused = 0
    for _ in range(1500):
        data = "".join(random.choices(pieces, k=random.randrange(1, 14))).encode("iso-8859-1")
        theirs = java.java.util.Properties()
        try:
            theirs.load(java.java.io.ByteArrayInputStream(data))
            # What Java makes of a last line of a backslash alone depends on the line before: nobody means either.
            expected = {key: value for key, value in dict(theirs).items() if key}
        except Exception as refusal:
            assert "Malformed" in str(refusal), data  # noqa: PT017 -- Java's own complaint is what is compared
            expected = None
            refused += 1
        try:
            found = {one.key: one.value for one in parse(data) if one.key}
        except BadProperties:
            found = None
        assert found == expected, data
    assert 0 < refused < 1000


@pytest.mark.parametrize(
    ("text", "module", "options"),
    [
        ('a.b.PlainLoginModule required username="me" password="it\'s; \\"x\\"";', "PlainLoginModule", 2),
        ("ScramLoginModule  REQUIRED\n username='me'\n password=plain ;", "ScramLoginModule", 2),
        ("a.OAuthBearerLoginModule required;", "OAuthBearerLoginModule", 0),
        ("a.b.Krb5LoginModule required useKeyTab=true keyTab=\"/etc/k\" principal='me@X';", "Krb5LoginModule", 3),
    ],
)
def test_a_login_line(text: str, module: str, options: int) -> None:
    found = login(text)
    assert (found.module, len(found.options)) == (module, options)
    assert "me" not in repr(found)


@pytest.mark.parametrize("text", ["", "x", "x maybe;", 'x required a="b', "x required a b;", "x required a=;"])
def test_what_is_no_login_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"login module|quote|name=value"):
        login(text)


@given(st.text(max_size=60))
def test_any_text_is_a_login_line_or_not_and_is_not_shown(text: str) -> None:
    expected = ("options must be written as name=value", "a quote is not closed")
    try:
        login(f"A required {text}")
    except ValueError as problem:
        assert str(problem) in expected  # noqa: PT017 -- refusing is one of two good ends
