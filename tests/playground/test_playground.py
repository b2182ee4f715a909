"""The playground in a real Chromium, against a real worker, directly and through jevproxy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.node import SDK, folder_with
from tests.playground.conftest import KEY, PATIENCE_S, PHONE, WIDE, Page
from tests.servers import Program, clean_environment, wait_until

HOSTILE = '<script>document.title = "owned"</script><img src=x onerror="document.title = 1">'
TYPES = {
    "team": {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"returns": "Refunds", "sales": None},
    },
    "anger": {"type": "score", "instructions": "How upset?", "criteria": ["Calm", "Furious"]},
    "refund": {"type": "noul", "instructions": "Does the customer ask for a refund?"},
}
STATE = "The lamp arrived in pieces. I want my money back."


def asked(state: Any = STATE, **questions: Any) -> dict[str, Any]:
    return {"model": "jev-latest", "state": state, "questions": questions or TYPES}


@pytest.fixture(params=["worker", "jevproxy"])
def url(request: pytest.FixtureRequest) -> str:
    """Where the page is: at the worker, and behind jevproxy."""
    name = "embedded_worker" if request.param == "worker" else "deployed"
    program: Program = request.getfixturevalue(name)
    return program.url


def test_each_type_is_answered(page: Page, url: str) -> None:
    page.open(url)
    page.put(asked())
    said = page.send()
    answers = page.answers()
    assert list(answers) == ["team", "anger", "refund"]
    assert "returns" in answers["team"] and "confidence" in answers["team"]
    assert "score 0." in answers["anger"] or "score 1." in answers["anger"]
    assert "true" in answers["refund"] and answers["refund"].count("%") == 2
    assert all(f"{id}: " in said for id in answers), "a screen reader is told"
    costs = page.all("#answers .costs")[0].text
    assert "tokens" in costs and "forward" in costs and "request " in costs
    bars = page.driver.execute_script(
        "return [...document.querySelectorAll('.bar span')].map((bar) => parseFloat(bar.style.width))"
    )
    assert len(bars) == 6 and sum(bars) == pytest.approx(300, abs=0.01)


def test_an_answer_is_the_server_s(page: Page, embedded_worker: Program) -> None:
    """Names that look like numbers keep their order, on the way there and in what is shown."""
    page.open(embedded_worker.url)
    request = asked(q={"type": "choice", "criteria": {"10": "lamps", "2": "chairs", "x": None}})
    page.put(request)
    assert list(page.request()["questions"]["q"]["criteria"]) == ["10", "2", "x"]
    page.send()
    names = [name.text for name in page.all("#answers tbody th b")]
    assert names == ["10", "2", "x"]
    answer = page.driver.execute_script("return document.querySelector('.costs pre').textContent")
    assert list(json.loads(answer)["answers"]["q"]["probabilities"]) == names


def test_the_form_writes_the_request(page: Page, embedded_worker: Program) -> None:
    page.open(embedded_worker.url)
    page.put({"state": "", "questions": {}})
    page.fill("state", "It is late.")
    page.click("Add choice")
    assert page.focused() == "q0-instructions"
    page.press("Which one?")
    page.fill("q0-id", "which")
    page.fill("q0-o0-name", "late")
    page.fill("q0-o0-text", "behind time")
    page.click("Add option")
    page.press("!")
    page.click("Add score")
    page.fill("q1-o0-text", "on time")
    page.click("Add yes or no (noul)")
    page.fill("q2-o0-text", "it is")
    page.choose("model", "demo")
    assert page.request() == {
        "state": "It is late.",
        "questions": {
            "which": {
                "type": "choice",
                "instructions": "Which one?",
                "criteria": {"late": "behind time", "option 2": None, "option 1!": None},
            },
            "question 1": {"type": "score", "instructions": "", "criteria": ["on time", "high"]},
            "question 2": {"type": "noul", "instructions": "", "criteria": {"true": "it is"}},
        },
        "model": "demo",
    }
    page.choose("q1-type", "choice")
    assert page.request()["questions"]["question 1"]["criteria"] == {"on time": None, "high": None}


def test_questions_move_double_and_go(page: Page, embedded_worker: Program) -> None:
    page.open(embedded_worker.url)
    page.put(asked())
    page.click_id("q0-move-down")
    assert list(page.request()["questions"]) == ["anger", "team", "refund"]
    assert page.focused() == "q1-move-down", "the focus goes with the question"
    page.click_id("q1-move-down")
    assert page.focused() == "q2-move-up", "at the end it goes to the button that still does something"
    page.click_id("q0-duplicate")
    assert list(page.request()["questions"]) == ["anger", "anger 2", "refund", "team"]
    assert page.focused() == "q1-id"
    page.click_id("q3-remove")
    assert list(page.request()["questions"]) == ["anger", "anger 2", "refund"]
    assert page.focused() == "q2-id"


def test_the_json_writes_the_form_and_keeps_what_the_form_does_not_show(
    page: Page, embedded_worker: Program
) -> None:
    page.open(embedded_worker.url)
    labels = {"true": "yes", "false": "no"}
    page.put(
        '{"state": {"n": 1.50, "big": 12345678901234567890}, "trace": 1, "questions": '
        f'{{"q": {{"type": "noul", "instructions": {{"ask": "?"}}, "labels": {json.dumps(labels)}}}, '
        '"odd": {"type": "boolean"}}}'
    )
    assert page.find("state-json").is_selected()
    assert page.find("q0-instructions").get_attribute("readonly")
    assert "only the JSON shows" in page.text("q1")
    page.fill("q0-id", "late")
    text = page.find("json").get_attribute("value") or ""
    assert "1.50" in text and "12345678901234567890" in text, "digits stay as they were written"
    assert page.request()["questions"]["late"]["labels"] == labels and page.request()["trace"] == 1


def test_json_that_cannot_be_read_says_where(page: Page, embedded_worker: Program) -> None:
    page.open(embedded_worker.url)
    page.put('{"state": "x",\n "questions": {]}')
    assert page.text("json-error") == "Line 2, column 16: expected a name in double quotes, found “]}”."
    assert page.find("broken").is_displayed() and not page.find("q0-id").is_enabled()
    page.click_id("send")
    assert page.focused() == "json", "nothing is sent"
    page.put(asked())
    assert not page.find("json-error").is_displayed() and page.find("q0-id").is_enabled()


def test_a_conversation(page: Page, embedded_worker: Program) -> None:
    page.open(embedded_worker.url)
    page.put(asked("My parcel is late."))
    page.click_id("state-conversation")
    page.click("Add message")
    page.press("When was it due?")
    messages = [
        {"role": "user", "content": "My parcel is late."},
        {"role": "assistant", "content": "When was it due?"},
    ]
    assert page.request()["state"] == messages
    page.click_id("state-json")
    page.fill("state", "[1, 2")
    assert "expected a comma or ]" in page.text("state-error")
    page.press(", 3]")
    assert page.request()["state"] == [1, 2, 3] and not page.find("state-error").is_displayed()
    page.click_id("state-text")
    assert page.request()["state"] == "[1, 2, 3]"


def test_an_error_stands_at_its_field(page: Page, url: str) -> None:
    page.open(url)
    page.put(asked(a=TYPES["team"], b={"type": "score", "criteria": ["low", None]}))
    said = page.send()
    assert "every level needs a string" in said
    assert "every level needs a string" in page.text("q1-criteria-error")
    assert page.focused() == "q1-criteria"
    fieldset = page.find("q1-criteria")
    assert fieldset.get_attribute("aria-invalid") == "true"
    assert fieldset.get_attribute("aria-describedby") == "q1-criteria-error"
    page.fill("q1-o1-text", "high")
    assert not page.find("q1-criteria-error").is_displayed(), "what is mended is not told any more"
    assert page.send().startswith("Answered")


@pytest.mark.parametrize(
    ("request_", "place", "words"),
    [
        (asked(q={"type": "choice", "criteria": {}}), "q0-criteria", "Too few choices"),
        (asked(q={"type": "score", "criteria": ["x"] * 11}), "q0-criteria", "at most 10"),
        (asked(q={"type": "boolean"}), "q0", "expected choice, score or noul"),
        (asked(q=TYPES["refund"]) | {"model": "gpt"}, "model", "Unknown model: gpt"),
        ({"questions": TYPES}, "state", "Field required"),
        ({"state": "x"}, "json", "Field required"),
    ],
)
def test_refusals_in_words_stand_at_their_field(
    page: Page, embedded_worker: Program, request_: dict[str, Any], place: str, words: str
) -> None:
    page.open(embedded_worker.url)
    page.put(request_)
    assert words in page.send()
    assert words in page.text(f"{place}-error")


def test_a_name_that_comes_twice_is_told_before_it_is_sent(page: Page, embedded_worker: Program) -> None:
    page.open(embedded_worker.url)
    page.put(asked())
    page.fill("q1-id", "team")
    page.click_id("send")
    assert page.focused() == "q1-id" and "twice" in page.text("q1-id-error")


def test_what_was_cut_is_shown_in_the_text(page: Page, embedded_worker: Program) -> None:
    page.open(embedded_worker.url)
    page.click("Too long to read")
    page.send()
    read, cut = page.all(".state-text > span")
    assert read.text.startswith("Read: Dear Sir or Madam") and cut.text.startswith("Not read:")
    assert cut.text.endswith("pay less rent.")
    assert "without the whole state" in page.answers()["topic"]
    # A conversation keeps its end.
    long = [{"role": "user", "content": f"Message {i} says nothing of importance."} for i in range(80)]
    page.put(asked([*long, {"role": "user", "content": "The end."}], q=TYPES["refund"]))
    page.send()
    assert "its end" in page.text("answers")
    cut, read = page.all(".state-text > span")
    assert cut.text.startswith("Not read: [{") and "The end." in read.text
    names = ["a " + "long " * 300 + end for end in "xy"]
    page.put(
        asked("x", q={"type": "choice", "instructions": "word " * 300, "criteria": dict.fromkeys(names)})
    )
    page.send()
    told = page.answers()["q"]
    assert "tokens of the instructions were not read" in told
    assert "Shortened before the model read them" in told and "The same to the model" in told


def test_a_key_is_asked_for_and_models_stand_side_by_side(page: Page, guarded: Program) -> None:
    page.open(guarded.url)
    page.put(asked())
    page.click_id("send")
    page.until("return document.querySelector('dialog').open")
    assert "No API key was sent" in page.text("key-why") and page.focused() == "key"
    page.press("not the key", Keys.ENTER)
    page.until("return document.querySelector('#key-why').textContent.includes('not valid')")
    page.press(KEY, Keys.ENTER)  # the wrong one is selected
    assert page.settled().startswith("Answered"), "with the key the same request is sent again"
    page.click_on(page.all("#compare summary")[0])
    page.until("return document.querySelector('#others input[value=tiny]') !== null")
    page.click_on(page.all("#others input[value=tiny]")[0])
    page.send()
    heads = [head.text.partition("@")[0] for head in page.all("#answers section:first-child thead th")]
    assert heads == ["demo", "tiny"]
    assert len(page.all("#answers .costs")) == 2
    assert page.answers()["team"].count("%") == 2 * 3
    stored = page.driver.execute_script(
        "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
    )
    assert KEY not in stored and KEY not in page.driver.page_source
    page.open(guarded.url)
    page.click_id("send")
    page.until("return document.querySelector('dialog').open")
    page.press(Keys.ESCAPE)
    assert page.focused() == "send", "the dialog lets the keyboard go back to where it was"


def test_what_anyone_wrote_stays_text(page: Page, embedded_worker: Program) -> None:
    page.open(embedded_worker.url)
    page.put(
        {
            "state": HOSTILE * 40,
            "questions": {
                HOSTILE: {
                    "type": "choice",
                    "instructions": HOSTILE,
                    "criteria": {HOSTILE: HOSTILE, "b": None},
                },
                "s": {"type": "score", "instructions": HOSTILE, "criteria": [HOSTILE, HOSTILE * 60]},
            },
        }
    )
    page.send()
    page.click_id("a0-wrong-0")
    assert HOSTILE in page.text("answers")
    page.put({"model": HOSTILE, "state": "x", "questions": {HOSTILE: {"type": HOSTILE}}})
    assert HOSTILE[:40] in page.send()
    assert page.driver.title == "Playground"
    assert page.driver.execute_script("return document.querySelectorAll('main script, img').length") == 0


def test_a_link_holds_the_request_and_sends_nothing(page: Page, url: str) -> None:
    page.open(url)
    request = asked("Grüße, 環 🎯", q={"type": "choice", "criteria": {"10": None, "2": "+/="}})
    page.put(request)
    page.click("Copy link")
    page.until("return document.querySelector('#status').textContent.includes('Link')")
    link = page.driver.current_url
    assert link.startswith(f"{url}/playground#request=")
    page.driver.refresh()
    page.until("return document.querySelector('#examples button') !== null")
    assert page.request() == request
    assert list(page.request()["questions"]["q"]["criteria"]) == ["10", "2"]
    assert page.answers() == {}, "a link asks nothing by itself"
    page.open(url, "#request=%%%")
    assert page.request()["questions"], "what is no request leaves the page as it is without"


def run(command: list[str], text: str, folder: Path) -> Any:
    """What a copied program prints."""
    environment = clean_environment({})
    done = subprocess.run(
        command, input=text, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_request_as_code_runs(page: Page, url: str) -> None:
    """curl, the Python SDK and the JavaScript SDK get the answers that the page shows."""
    page.open(url)
    hard = "It's \"late\" \\ $HOME `x` ${y}\n'JSON'\nJSON 環"
    labelled = {"type": "noul", "instructions": hard, "labels": {"true": "yes", "false": "no"}}
    page.put(asked({"text": hard, "n": 1.5, "none": None, "yes": True}, q=labelled, **TYPES))
    page.send()
    shown = json.loads(page.all(".costs pre")[0].get_attribute("textContent") or "")
    page.driver.execute_script("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    folder = folder_with(*SDK)
    commands = {
        "curl": ["bash"],
        "Python SDK": [sys.executable, "-"],
        "JavaScript SDK": ["node", "--input-type=module"],
    }
    for name, command in commands.items():
        page.click(f"Copy {name}")
        printed = run(command, page.text("code"), folder)
        for id, answer in shown["answers"].items():
            for figure in ("noul", "score", "choice"):
                assert printed["answers"][id].get(figure) == pytest.approx(answer.get(figure), abs=1e-5)


def test_marks_are_downloaded_as_labelled_decisions(page: Page, embedded_worker: Program) -> None:
    page.open(embedded_worker.url)
    page.put(asked())
    page.send()
    assert not page.find("marked").is_displayed()
    page.click_id("a0-right-0")
    assert page.focused() == "a0-right-0" and page.find("a0-right-0").get_attribute("aria-pressed") == "true"
    page.click_id("a1-wrong-0")
    assert page.all("#a1-wrong-0[aria-pressed=true]") and page.text("mark-count") == "2 answers marked"
    page.click_id("a0-wrong-0")
    page.click_id("a0-right-0")
    page.put(asked("Another text.", three={"type": "choice", "criteria": {"a": None, "b": None, "c": None}}))
    page.send()
    page.click_id("a0-wrong-0")
    assert page.focused() == "a0-label" and page.text("mark-count") == "2 answers marked", "not said yet"
    page.choose("a0-label", "1")
    page.click("Download labelled decisions")
    file = page.downloads / "decisions.jsonl"
    wait_until(file.exists, PATIENCE_S, "the download")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    assert [set(line) for line in lines] == [{"state", "questions", "labels"}] * 2
    assert lines[0]["state"] == STATE and list(lines[0]["questions"]) == ["team", "anger"]
    assert lines[0]["labels"]["team"] == "returns" and lines[0]["labels"]["anger"] in (0, 1)
    assert lines[1]["labels"] == {"three": "b"}
    leaving = "const event = new Event('beforeunload', {cancelable: true}); dispatchEvent(event); "
    assert page.driver.execute_script(f"{leaving} return event.defaultPrevented"), (
        "a browser asks before it leaves"
    )


def test_the_keyboard_alone_is_enough(page: Page, embedded_worker: Program) -> None:
    page.open(embedded_worker.url)
    page.tab_to("state")
    page.press_with(Keys.CONTROL, "a")
    page.press("The bus left without me.")
    page.tab_to("q0-remove")
    page.press(Keys.ENTER)
    page.tab_to("q0-remove")
    page.press(Keys.SPACE)
    page.tab_to("q0-instructions")
    page.press_with(Keys.CONTROL, "a")
    page.press("Did somebody miss a bus?")
    page.press_with(Keys.CONTROL, Keys.ENTER)
    assert page.settled().startswith("Answered. refund: true")
    assert page.request()["state"] == "The bus left without me."
    assert page.focused() == "q0-instructions", "sending leaves the focus where it is"
    page.tab_to("a0-wrong-0")
    page.press(Keys.SPACE)
    assert page.focused() == "a0-wrong-0"
    page.tab_to("download")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_anyone_can_read_it(page: Page, embedded_worker: Program, scheme: str, size: tuple[int, int]) -> None:
    """axe-core finds nothing, contrast included; on a phone nothing is cut off at the side. Screenshots are kept."""
    page.look(size, scheme)
    page.open(embedded_worker.url)
    page.click("Too long to read")
    page.send()
    page.click_id("a0-wrong-0")
    page.driver.execute_script("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    page.shoot(f"answered-{scheme}-{size[0]}")
    assert page.unreadable() == []
    page.put(
        asked([{"role": "user", "content": "Hello?"}], a=TYPES["team"], b={"type": "score", "criteria": []})
    )
    page.send()
    page.shoot(f"refused-{scheme}-{size[0]}")
    assert page.unreadable() == []
    assert page.driver.execute_script("return document.documentElement.scrollWidth") <= size[0]
