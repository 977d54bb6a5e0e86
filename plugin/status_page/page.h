// The status page: one HTML text with its style and script inside, for GET / on loopback.
//
// It is made of page.html, page.css and page.js by join.py at build time. It asks for nothing but
// status.json, beside itself, and writes nothing. docs/reference/status.md says what it shows.
#pragma once

#include <string_view>

namespace gpushm::plugin {

// text/html; charset=utf-8.
std::string_view StatusPage();

// The value of the Content-Security-Policy header to send with it: only this style and this script
// run, by their hashes.
std::string_view StatusPageCsp();

}  // namespace gpushm::plugin
