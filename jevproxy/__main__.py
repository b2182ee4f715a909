"""The `jevproxy` command: gunicorn with jevproxy's configuration, from any folder; its own options may follow."""

import os
import sys

from .notify import refuse
from .settings import SettingsError, load


def main() -> None:
    try:
        load()
    except SettingsError as error:
        refuse(error)
    os.execv(
        sys.executable,
        [
            sys.executable,
            "-m",
            "gunicorn",
            "-k",
            "gevent",
            "-c",
            "python:jevproxy.gunicorn_conf",
            *sys.argv[1:],
            "jevproxy.wsgi",
        ],
    )


if __name__ == "__main__":
    main()
