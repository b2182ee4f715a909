"""`jevworker batch`: from arguments to a job that runs.

It knows the arguments, and which parts they choose. It must not know how records are read, decided or written.
"""

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from worker import document, observe, protocol
from worker.decide import Policy, ServedModel
from worker.errors import Refused
from worker.files import answered, preview
from worker.files.deciders import Decider, Local, Remote, Stopped
from worker.files.job import Job, Selection, claimed, decide_all
from worker.files.output import Output, open_output
from worker.files.progress import Progress, Tally
from worker.files.records import FORMATS, STDIN, JobRefused, Source, find, format_of
from worker.files.table import Table, columns_of
from worker.lane import Lane
from worker.protocol import Question
from worker.remote import Deployment
from worker.settings import Settings, environment

DESCRIPTION = """Asks the same questions about every record of files, and writes each record with its answers.

  jevworker batch questions.json < texts.jsonl > answers.jsonl
  jevworker batch questions.json --input tickets.csv --state subject,body --output answered.csv
  jevworker batch questions.json --input 'logs/*.parquet' --output answered.parquet --url http://127.0.0.1:8080

questions.json holds a map of questions, or a whole System One request, whose `questions` are taken.
You may stop or kill a job with --output at any moment: the same command goes on where it was.
"""
EPILOG = """
exit status: 0 every record was decided; 1 some are error records; 2 the job could not start;
3 it stopped before its end (the same command goes on); 130 Ctrl-C or SIGTERM (likewise).
LAYA_MODELS, LAYA_DEVICE, LAYA_THREADS, LAYA_OVERFLOW and the like hold as for the server.
LAYA_API_KEY is the key that --url gets.
"""
DONE, SOME_FAILED = 0, 1
PREVIEWED = 3

log = logging.getLogger("worker")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("questions", type=Path, help="a JSON file with the questions")
    parser.add_argument(
        "--input",
        nargs="+",
        default=[STDIN],
        metavar="FILE",
        help="files or globs; standard input without it",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="standard output without it, which cannot be gone on with"
    )
    parser.add_argument("--format", choices=FORMATS, help="of the input, where its name does not say")
    parser.add_argument(
        "--state", default="", metavar="FIELDS",
        help="the field that is the state, or several, comma-separated, as an object of them; without it the field "
        "`state`, and where there is none the whole record",
    )  # fmt: skip
    parser.add_argument(
        "--probabilities", action="store_true", help="a table also gets a column for each option"
    )
    parser.add_argument(
        "--model", help="one of LAYA_MODELS, the first without it; with --url, the model to ask for"
    )
    parser.add_argument("--url", help="ask this deployment in place of an engine in this process")
    parser.add_argument(
        "--callers", type=_callers, default=16, help="requests at once at --url (default: %(default)s)"
    )
    parser.add_argument("--restart", action="store_true", help="begin anew, over what --output holds")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first bad record")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help=f"show the rows of the first {PREVIEWED} records, and decide nothing",
    )


def run(given: argparse.Namespace) -> int:
    """Runs the job; the exit status. Raises StartFailed when it cannot start."""
    settings = environment()
    observe.start_log(settings.log_level)
    request, questions = read_questions(given.questions, settings.wire)
    source = find(given.input, given.format)
    selection = _selection(given.state, source)
    format = format_of(str(given.output)) if given.output else source.format
    if format is None:
        raise JobRefused(f"{given.output}: a name that ends in .jsonl, .csv or .parquet says what to write")
    table = None if format == "jsonl" else Table(columns_of(source), questions, given.probabilities)
    job = Job(source, selection, answered.clash if table is None else table.problem)
    with _stop_signals() as stopping:
        if given.dry_run:
            return _show(job, questions, settings, given.model)
        asked = (
            request,
            format,
            given.probabilities,
            given.url,
            given.model,
            settings.wire,
            settings.overflow,
        )
        with claimed(given.output, job, *asked, restart=given.restart):
            output = open_output(given.output, format, table, source)
            if output.done:
                log.info("%d records are decided already", output.done)
            with closing(output):
                decider = _decider(
                    given, settings, request, questions, lambda: not stopping.is_set(), stopping.wait
                )
                return _decide(job, decider, output, questions, given)


def read_questions(path: Path, wire: str) -> tuple[dict[str, Any], tuple[Question, ...]]:
    """The questions of a file, as they are sent and as they are asked. Raises JobRefused, with the field."""
    try:
        found = document.decode(path.read_bytes())
        nested = isinstance(found, dict) and isinstance(found.get("questions"), dict)
        request = {"state": "", "questions": found["questions"] if nested else found}
        return {"questions": request["questions"]}, protocol.parse(request, wire).questions
    except OSError as error:
        raise JobRefused(f"{path}: {error.strerror}") from None
    except Refused as refused:
        raise JobRefused(f"{path}: {answered.message(refused.detail)}") from None


def _selection(fields: str, source: Source) -> Selection:
    names = tuple(filter(None, (name.strip() for name in fields.split(","))))
    columns = source.columns()
    if columns is not None and (missing := [name for name in names if name not in columns]):
        raise JobRefused(f"--state: there is no column '{missing[0]}'; there are {', '.join(columns)}")
    return Selection(names)


def _decide(
    job: Job, decider: Decider, output: Output, questions: Sequence[Question], given: argparse.Namespace
) -> int:
    tally = Tally(questions)
    progress = Progress(job.source.count(), output.done, tally)
    try:
        decide_all(job, decider, output, progress, tally, given.fail_fast)
    except Stopped as stopped:
        more = "; the same command goes on from here" if given.output else ""
        print(f"jevworker batch: {stopped}{more}", file=sys.stderr)
        return stopped.exit_status
    finally:
        progress.close()
        for line in tally.lines():
            print(line, file=sys.stderr)
    return SOME_FAILED if tally.failed else DONE


def _decider(
    given: argparse.Namespace,
    settings: Settings,
    request: dict[str, Any],
    questions: Sequence[Question],
    alive: Callable[[], bool],
    pause: Callable[[float], object],
) -> Decider:
    if given.url:
        named = request | ({"model": given.model} if given.model else {})
        return Remote(Deployment(given.url, settings.api_key, pause), named, given.callers, alive)
    model, lane = _load(settings, given.model)
    return Local(model, lane, questions, _policy(settings), alive)


def _policy(settings: Settings) -> Policy:
    return Policy(settings.wire, settings.overflow == "refuse")


def _load(settings: Settings, name: str | None) -> tuple[ServedModel, Lane]:
    """The one model to decide with. Raises StartFailed."""
    models = [source for source in settings.models if name in (None, source.name)][:1]
    if not models:
        raise JobRefused(f"--model: {name} is not among LAYA_MODELS")
    # torch takes seconds to import: what is refused before is refused at once.
    from worker import loading

    lane = Lane(cache_rows=settings.row_cache)
    return loading.load(replace(settings, models=tuple(models)), lane).entries[0].model, lane


def _show(job: Job, questions: Sequence[Question], settings: Settings, name: str | None) -> int:
    model, _ = _load(settings, name)
    for task in islice(job.tasks(0), PREVIEWED):
        for line in preview.lines(model, questions, _policy(settings), task):
            print(line)
    return DONE


def _callers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError("expected a whole number from 1 to 1024")
    return int(text)


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that the job ends between two steps; a second one ends the process."""
    stopping = threading.Event()

    def stop(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
