"""Every knob's accepted and refused forms."""

from __future__ import annotations

import pytest

from jevproxy.settings import KNOBS, MIB, SettingsError, from_environ

pytestmark = pytest.mark.once


def test_the_defaults() -> None:
    settings = from_environ({})
    assert (settings.bind, settings.backend_url) == ("127.0.0.1:8080", "http://127.0.0.1:8000")
    assert (settings.timeout, settings.health_timeout, settings.pool_idle, settings.drain) == (60, 2, 4, 65)
    assert (settings.max_concurrent, settings.max_body) == (256, 128 * MIB)
    assert [(route.method, route.path) for route in settings.routes] == [
        ("POST", "/v1/systemone"),
        ("GET", "/v1/models"),
        ("GET", "/playground"),
        ("GET", "/playground/*"),
    ]


def test_an_empty_value_is_the_default() -> None:
    assert from_environ({knob.variable: " " for knob in KNOBS}) == from_environ({})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("OMNI_JEV_BIND", value) for value in ("8080", "host", "host:", ":1", "a:b:1", "[::1]", "h:65536", "unix:")),
        *(
            ("OMNI_JEV_BACKEND_URL", value)
            for value in (
                "localhost:8000", "ftp://h", "http://", "http://user:sesame@h", "http://sesame@h", "http://h/?sesame=1",
                "http://h/#sesame", "http://h:0", "http://h:99999", "http://h:x", "http://[::1", "http://h/ a", "//h",
            )
        ),
        *(("OMNI_JEV_TIMEOUT", value) for value in ("0", "-1", "nan", "inf", "soon", "60s", "1e9")),
        *(("OMNI_JEV_MAX_CONCURRENT", value) for value in ("0", "1.5", "-1", "+5", "many", "1000000000000")),
        *(("OMNI_JEV_MAX_BODY_MB", value) for value in ("0", "-1", "nan", "big")),
        *(
            ("OMNI_JEV_ROUTES", value)
            for value in ("nothing", ",", "GET", "get /x", "GET x", "GET /health", "GET /a*b", "GET /a?b", "GET /<a>")
        ),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_in_one_line_that_names_the_variable_and_not_the_value(
    variable: str, value: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        from_environ({variable: value})
    text = str(caught.value)
    assert text.startswith(variable) and "\n" not in text and "sesame" not in text


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(
            ("OMNI_JEV_BIND", value)
            for value in ("0.0.0.0:80", "localhost:1", "[::1]:8080", "unix:/run/a.sock")
        ),
        *(
            ("OMNI_JEV_BACKEND_URL", value)
            for value in ("http://h", "https://h:8443/base/", "http://[::1]:8000", "HTTP://h/a%20b")
        ),
        ("OMNI_JEV_TIMEOUT", "0.5"),
        ("OMNI_JEV_POOL_IDLE", "0"),
        ("OMNI_JEV_ROUTES", "decisions, GET /files/*"),
    ],
)
def test_a_right_value_is_taken(variable: str, value: str) -> None:
    from_environ({variable: value})
