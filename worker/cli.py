"""The `jevworker` command: its verbs, each with options of its own.

It knows which module does what. It must not know how. A verb's module is imported when the verb is asked for:
some bring torch, which takes seconds.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from worker.errors import StartFailed


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb, what it does in one line, and its module.

    The module has `add_arguments(parser)` and `run(args)`, which returns the exit status.
    """

    name: str
    module: str
    summary: str


VERBS = (
    Verb("serve", "worker.wsgi", "serve models over HTTP; what `jevworker` alone does"),
    Verb(
        "batch",
        "worker.files.command",
        "decide over files: JSON Lines, CSV or Parquet in, the same with answers out",
    ),
)
# An option or a file that cannot be used, as argparse and the shell have it.
USAGE = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the verb of the command line, and exit with its status; without a verb, serve."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["serve"]
    args = _parser(given[0]).parse_args(given, argparse.Namespace(arguments=given))
    try:
        sys.exit(args.run(args))
    except StartFailed as failed:
        print(f"jevworker {args.verb}: {failed}", file=sys.stderr)
        sys.exit(USAGE)


def _parser(asked: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "jevworker",
        description="Serves Laya decision models, and decides over files with them.",
        epilog="`jevworker VERB --help` shows a verb's options.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for verb in VERBS:
        own = verbs.add_parser(
            verb.name, help=verb.summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if verb.name == asked:
            module = import_module(verb.module)
            own.description = module.__doc__
            module.add_arguments(own)
            own.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    main()
