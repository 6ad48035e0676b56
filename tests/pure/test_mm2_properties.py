"""Java's property files, the rules one by one (`tests/spark/test_session.py` asks Java itself), and login lines."""

from __future__ import annotations

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
    with pytest.raises(ValueError, match=r"login module|No closing quotation|name=value"):
        login(text)


@given(st.text(max_size=60))
def test_any_text_is_a_login_line_or_not_and_is_not_shown(text: str) -> None:
    expected = ("options must be written as name=value", "No closing quotation", "No escaped character")
    try:
        login(f"A required {text}")
    except ValueError as problem:
        assert str(problem) in expected  # noqa: PT017 -- refusing is one of two good ends
