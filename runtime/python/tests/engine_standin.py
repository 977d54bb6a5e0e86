"""Programs in place of serving engines, for tests of the examples that start them."""

import pathlib
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"
# What each program begins with: an HTTP server's answers, and what it was asked.
_HEAD = f"""#!{sys.executable}
import http.server, json, os, socket, sys

class Answering(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def asked(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

def serve(port, handler):
    http.server.HTTPServer(("127.0.0.1", int(port)), handler).serve_forever()

"""


def run_example(broker, folder, programs, example, *words):
    """Runs an example with these programs, {name: Python text}, in its PATH. Returns the ended process."""
    for name, text in programs.items():
        (folder / name).write_text(_HEAD + text)
        (folder / name).chmod(0o755)
    environment = broker.environment("app")
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    return subprocess.run([sys.executable, str(EXAMPLES / example), *words], env=environment, timeout=120,
                          capture_output=True, text=True)
