"""Prints nothing: a server that only answers. Ready after `argv[2]` requests that get a 503."""

import itertools
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, REFUSALS = int(sys.argv[1]), int(sys.argv[2])
asked = itertools.count()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503 if next(asked) < REFUSALS else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if b"refuse" in body:
            told = f"no tokenizer for who comes with {self.headers['Authorization']}".encode()
            self.send_response(400)
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b': alive\n\ndata: {"text": "a"}\n\ndata: [DONE]\n\n')

    def log_message(self, *args: object) -> None:
        return


try:
    ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
except KeyboardInterrupt:
    sys.exit(0)
