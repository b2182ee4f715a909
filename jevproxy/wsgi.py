"""`gunicorn -k gevent jevproxy.wsgi`: the application as gunicorn finds it."""

# Before anything imports ssl or requests: with --preload they are imported in gunicorn's master, ahead of its own
# patching, and a late patch recurses in ssl (gunicorn#1559, gevent#1016).
from gevent import monkey

monkey.patch_all()

from .app import create_app  # noqa: E402
from .observe import Observer  # noqa: E402
from .settings import load, metrics_directory  # noqa: E402

observer = Observer(shared=metrics_directory())
application = create_app(load(), observer)
