"""Joins the status page's sources into one HTML text, and computes its Content-Security-Policy.

join.py OUT.cc: writes both as the functions of page.h. The page's tests use only join().
"""

import base64
import hashlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
DELIMITER = "gpushm-page"


def source(name):
    return (HERE / name).read_text(encoding="utf-8")


def hash_of(text):
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def join():
    """Returns the page and its policy: only these two inline texts, and fetches from self."""
    style, script = source("page.css"), source("page.js")
    if "</style" in style or "</script" in script:
        sys.exit("join.py: style or script contains its end tag: split that string in two")
    page = source("page.html").replace("@page.css@", style).replace("@page.js@", script)
    policy = "; ".join(["default-src 'none'", f"script-src {hash_of(script)}",
                        f"style-src {hash_of(style)}", "connect-src 'self'", "base-uri 'none'",
                        "form-action 'none'", "frame-ancestors 'none'"])
    return page, policy


def literal(text):
    return f'R"{DELIMITER}({text}){DELIMITER}"'


def main():
    page, policy = join()
    pathlib.Path(sys.argv[1]).write_text(
        '#include "plugin/status_page/page.h"\n\nnamespace gpushm::plugin::status_page {\n\n'
        f"std::string_view StatusPage() {{\n  return {literal(page)};\n}}\n\n"
        f"std::string_view StatusPageCsp() {{\n  return {literal(policy)};\n}}\n\n"
        "}  // namespace gpushm::plugin::status_page\n", encoding="utf-8")


if __name__ == "__main__":
    main()
