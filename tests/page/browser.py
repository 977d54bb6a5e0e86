"""A separate headless Chromium, and a page in it that reports forbidden actions."""

import os
import tempfile

from playwright.sync_api import sync_playwright

# No sandbox: the tests run as root in containers, and load only files of this project.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]
TIMEOUT_MS = 15000
WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}

NOTE_VIOLATIONS = """
  window.violations = [];
  addEventListener('securitypolicyviolation',
    (e) => violations.push(`${e.violatedDirective}: ${e.blockedURI} ${e.sample}`));
"""


class Browser:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.playwright = sync_playwright().start()
        self.chromium = self.playwright.chromium.launch(
            executable_path=os.environ["CHROMIUM"], args=FLAGS, headless=True,
            env={**os.environ, "HOME": self.folder.name})

    def open(self, url, viewport=None, scheme="light", **more):
        """A page in an empty profile; `page.trouble` collects its errors."""
        context = self.chromium.new_context(
            viewport=viewport or WIDE, color_scheme=scheme, locale="en-GB", timezone_id="UTC",
            **more)
        context.set_default_timeout(TIMEOUT_MS)
        context.add_init_script(NOTE_VIOLATIONS)
        page = context.new_page()
        page.trouble = []
        page.on("pageerror", lambda error: page.trouble.append(f"script: {error}"))
        page.on("dialog", lambda dialog: page.trouble.append(f"dialog: {dialog.message}"))
        context.on("request", lambda request: note_request(page, url, request))
        return page

    def close(self):
        self.chromium.close()
        self.playwright.stop()
        self.folder.cleanup()


def note_request(page, url, request):
    if not request.url.startswith(url):
        page.trouble.append(f"asks for {request.url}")
    if request.method != "GET":
        page.trouble.append(f"not read-only: {request.method} {request.url}")
