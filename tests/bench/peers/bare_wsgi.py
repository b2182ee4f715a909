"""The yardstick: the least that gunicorn's gevent worker and urllib3 can do, with no Flask and no requests."""

import os

import urllib3

pool = urllib3.connectionpool.connection_from_url(os.environ["OMNI_JEV_BACKEND_URL"], maxsize=256)


def app(environ, start_response):
    upstream = pool.urlopen(
        "POST",
        environ["PATH_INFO"],
        body=environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])),
        headers={"Content-Type": "application/json", "Authorization": environ["HTTP_AUTHORIZATION"]},
        retries=False,
        preload_content=False,
        decode_content=False,
    )
    body = upstream.read(decode_content=False)
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
