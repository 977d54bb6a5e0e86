"""Plays the plugin: serves the built page with its policy, and a document that the test chooses."""

import http.server
import json
import pathlib
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "plugin" / "status_page"))
import join  # noqa: E402


class Plugin:
    """`document`: what /status.json says; `failure`: None, "status", "garbage" or "silence"."""

    def __init__(self):
        self.page, self.policy = join.join()
        self.document = {}
        self.failure = None
        self.over = threading.Event()  # Ends answers that would never come.
        self.asked = 0
        plugin = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                plugin.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request):
        if request.path == "/":
            self.send(request, 200, "text/html; charset=utf-8", self.page)
        elif request.path != "/status.json":
            self.send(request, 404, "text/plain", "no such page")
        else:
            self.asked += 1
            if self.failure == "silence":
                self.over.wait(60)
            if self.failure == "status":
                self.send(request, 503, "text/plain", "not ready")
            elif self.failure == "garbage":
                self.send(request, 200, "application/json", "{")
            else:
                self.send(request, 200, "application/json", json.dumps(self.document))

    def send(self, request, status, kind, text):
        body = text.encode()
        try:
            request.send_response(status)
            request.send_header("Content-Type", kind)
            request.send_header("Content-Length", str(len(body)))
            request.send_header("Content-Security-Policy", self.policy)
            request.end_headers()
            request.wfile.write(body)
        except BrokenPipeError:
            pass  # The page gave up first.

    def close(self):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()
