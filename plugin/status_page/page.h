// The status page: one HTML text that includes its style and script, for GET / on loopback.
//
// At build time, join.py makes it from page.html, page.css and page.js. It requests only
// status.json, from the same server, and writes nothing. docs/reference/status.md says what it
// shows.
#pragma once

#include <string_view>

namespace gpushm::plugin::status_page {

// Content type: text/html; charset=utf-8.
std::string_view StatusPage();

// The value of the Content-Security-Policy header to send with it. It allows only this style and
// this script, by their hashes.
std::string_view StatusPageCsp();

}  // namespace gpushm::plugin::status_page
