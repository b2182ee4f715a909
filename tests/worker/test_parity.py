"""The worker in laya-serve's wire says what the laya package says: the same ids, the same JSON values.

laya rounds to 4 decimals with the name `round`, so a `round` in its module that does nothing gives its values
unrounded. Two correct computations in fp32 may round apart where the value lies on an edge between two decimals;
only there, within 1e-5, one step of difference is let pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import laya.agent
import pytest
import torch
from laya import Agent
from laya.common import build_sequence
from laya.serve import _add_jev_confidence

from tests.client import Client
from tests.servers import Program, start_worker
from tests.worker.cases import Cases
from tests.worker.conftest import EMBEDDED
from worker import checkpoint, protocol, rows

EDGE = 1e-5
STEP = 1e-4
COUNTS = {"tiny": 220, "bert": 60, "demo": 40, "base": 6}
# Base-size arithmetic on 600 words takes seconds a row; its long rows are tiny's to check.
LONGEST = {"base": 10}


@pytest.fixture(scope="module")
def folders(tiny: Path, tiny_bert: Path, base: Path) -> dict[str, Path]:
    return {"tiny": tiny, "bert": tiny_bert, "demo": EMBEDDED, "base": base}


@pytest.fixture(scope="module")
def served(folders: dict[str, Path]) -> Iterator[Program]:
    models = ",".join(f"{name}={folder}" for name, folder in folders.items())
    with start_worker(LAYA_MODELS=models, LAYA_WIRE="laya") as program:
        yield program


@pytest.fixture(scope="module", params=list(COUNTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def agent(name: str, folders: dict[str, Path]) -> Agent:
    # Two programs with a thread for every core each would wait for one another.
    torch.set_num_threads(1)
    return Agent(str(folders[name]), device="cpu")


def requests(name: str) -> list[dict[str, Any]]:
    cases = Cases(sorted(COUNTS).index(name), LONGEST.get(name, 600))
    return [cases.request() for _ in range(COUNTS[name])]


def unrounded(agent: Agent, request: dict[str, Any]) -> Any:
    laya.agent.round = lambda value, digits: value
    try:
        return agent.system_one(request["state"], request["questions"])
    finally:
        del laya.agent.round


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def same(ours: Any, theirs: Any, exact: Any, at: str) -> None:
    """`theirs`, or one step beside it where the `exact` value lies on an edge between two decimals."""
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), at
        for key in theirs:
            same(ours[key], theirs[key], exact.get(key), f"{at}.{key}")
    elif isinstance(theirs, float) and ours != theirs:
        # The contract's confidence comes from rounded probabilities, so an edge in one of those shows here.
        slack = 30 * STEP if at.endswith("x_jev_confidence") else STEP
        assert abs(ours - theirs) <= slack + 1e-9, at
        if exact is not None:
            assert abs((exact / STEP) % 1 - 0.5) * STEP <= EDGE, f"{at}: {ours} for {exact}"
    else:
        assert ours == theirs and type(ours) is type(theirs), at


def test_answers_and_usage(name: str, agent: Agent, served: Program) -> None:
    client, refused = Client(served.url), 0
    try:
        for i, request in enumerate(requests(name)):
            status, ours = client.post({"model": name, **request})
            try:
                exact = unrounded(agent, request)
            except ValueError as error:
                assert status == 400 and "option markers fit" in str(error), (status, ours, error)
                assert ours["detail"]["error_type"] == "max_tokens_exceeded"
                refused += 1
                continue
            assert status == 200, ours
            theirs = json.loads(json.dumps(_add_jev_confidence(rounded(exact))))
            assert ours["model"] == theirs["model"]
            same(ours["answers"], theirs["answers"], exact["answers"], f"{name} {i}")
            assert ours["usage"] == theirs["usage"], (name, i)
    finally:
        client.close()
    assert refused < COUNTS[name] / 3


def test_token_ids(name: str, agent: Agent, folders: dict[str, Path]) -> None:
    loaded = checkpoint.load(str(folders[name]), "cpu", "fp32")
    tokenizer, config = loaded.tokenizer, loaded.config
    for request in requests(name):
        state = rows.tokenize_state(tokenizer, request["state"])
        for question in protocol.questions(request["questions"], "laya"):
            ids, markers, stats = build_sequence(
                agent.tok,
                request["state"],
                agent._to_internal(request["questions"][question.id]),
                config.max_len,
                config.head_max_len,
                truncate_left=isinstance(request["state"], list),
                return_stats=True,
            )
            prompt = rows.tokenize_question(tokenizer, question)
            assert prompt.distinct_options == stats["options_distinct"]
            assert prompt.tokens_per_option == stats["tokens_per_option"]
            assert rows.fits(tokenizer, prompt) == (len(markers) == stats["options"])
            if rows.fits(tokenizer, prompt):
                made, _ = rows.build_row(tokenizer, prompt, state, question.id)
                assert made.token_ids == tuple(ids) and made.markers == tuple(markers)
