# gunicorn reads this file when it is started in this folder: `gunicorn -k gevent jevproxy.wsgi`.
from jevproxy.gunicorn_conf import *  # noqa: F403
