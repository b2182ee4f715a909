"""Settings are read from a mapping, and a wrong one is refused by name."""

from __future__ import annotations

import dataclasses

import pytest

from worker.errors import SettingRefused
from worker.settings import KNOBS, KNOWN, Settings, read

pytestmark = pytest.mark.once


def test_every_field_has_one_variable() -> None:
    assert [knob.field for knob in KNOBS] == [field.name for field in dataclasses.fields(Settings)]
    foreign = {knob.variable for knob in KNOBS if not knob.variable.startswith("LAYA_")}
    assert foreign == {"OMP_NUM_THREADS"}


def test_defaults() -> None:
    settings = read({})
    assert (settings.host, settings.port, settings.device, settings.wire) == (
        "127.0.0.1",
        8000,
        "auto",
        "jev",
    )
    assert [(model.name, model.source) for model in settings.models] == [("demo", KNOWN["demo"])]
    assert settings.api_key is None and settings.threads == 0 and settings.buckets == ()
    assert read({knob.variable: " " for knob in KNOBS}) == settings


def test_models() -> None:
    models = read({"LAYA_MODELS": "english, mine=/srv/laya,hub=a/b@main#sub"}).models
    assert [model.name for model in models] == ["english", "mine", "hub"]
    assert models[0].source == KNOWN["english"] and models[1].source == "/srv/laya"
    assert models[2].source == "a/b@main#sub"


def test_a_known_model_may_have_another_name() -> None:
    models = read({"LAYA_MODELS": "jev-1.13.0=demo,english,demo=multilingual,here=./demo"}).models
    assert {model.name: model.source for model in models} == {
        "jev-1.13.0": KNOWN["demo"],
        "english": KNOWN["english"],
        "demo": KNOWN["multilingual"],
        "here": "./demo",
    }


def test_values() -> None:
    settings = read(
        {
            "LAYA_GRAPHS": "off",
            "LAYA_BUCKETS": "32, 64,512",
            "LAYA_API_KEY": "geheim é",
            "LAYA_MAX_BODY_MB": "0.5",
            "LAYA_DEVICE": "cuda:1",
            "LAYA_THREADS": "3",
            "OMP_NUM_THREADS": "4, 2",
            "LAYA_PATIENCE": "2.5",
        }
    )
    assert settings.buckets == (32, 64, 512) and not settings.graphs and settings.threads == 3
    assert settings.omp_threads == 4
    assert settings.api_key == "geheim é" and "geheim" not in repr(settings)
    assert settings.max_body_mb == 0.5 and settings.device == "cuda:1" and settings.patience == 2.5


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LAYA_PORT", "-1"),
        ("LAYA_PORT", "65536"),
        ("LAYA_PORT", "80 80"),
        ("LAYA_PORT", "²"),
        ("LAYA_HOST", "a/b"),
        ("LAYA_HOST", "[::1"),
        ("LAYA_HOST", "[host]"),
        ("LAYA_PATIENCE", "-1"),
        ("LAYA_MODELS", "unknown"),
        ("LAYA_MODELS", "a=,b=x"),
        ("LAYA_MODELS", "demo,demo"),
        ("LAYA_MODELS", "jev-latest=/srv/x"),
        ("LAYA_DEVICE", "gpu"),
        ("LAYA_DTYPE", "fp16"),
        ("LAYA_THREADS", "0"),
        ("LAYA_BUCKETS", "64,32"),
        ("LAYA_BUCKETS", "0"),
        ("LAYA_ROW_CACHE", "1e3"),
        ("LAYA_WIRE", "openai"),
        ("LAYA_OVERFLOW", "drop"),
        ("LAYA_LIMIT_STATUS", "404"),
        ("LAYA_MAX_CONCURRENT", "0"),
        ("LAYA_MAX_BODY_MB", "inf"),
        ("LAYA_BODY_TIMEOUT", "nan"),
        ("LAYA_LOG_LEVEL", "loud"),
        ("LAYA_GRAPHS", "maybe"),
    ],
)
def test_a_wrong_value_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(SettingRefused) as refused:
        read({variable: value})
    assert str(refused.value).startswith(f"{variable}: expected ")


@pytest.mark.parametrize(("given", "host"), [("[::1]", "::1"), ("::1", "::1"), ("0.0.0.0", "0.0.0.0")])
def test_an_address_may_stand_in_brackets(given: str, host: str) -> None:
    assert read({"LAYA_HOST": given}).host == host


def test_a_key_is_any_text() -> None:
    assert read({"LAYA_API_KEY": "none"}).api_key == "none"


def test_words_of_the_table_are_no_values() -> None:
    for knob in KNOBS:
        if knob.shown and knob.variable != "LAYA_API_KEY":
            with pytest.raises(SettingRefused):
                read({knob.variable: knob.shown})
    for variable, value in (("LAYA_THREADS", "physical cores"), ("LAYA_BUCKETS", "built in")):
        with pytest.raises(SettingRefused):
            read({variable: value})
