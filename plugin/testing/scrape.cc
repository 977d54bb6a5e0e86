#include "plugin/testing/scrape.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "platform/base/unique_fd.h"

namespace gpushm::plugin::testing {
namespace {

// Longer than any successful request, but shorter than the hangs that tests make.
constexpr timeval kTimeout{.tv_sec = 30, .tv_usec = 0};

std::string HeaderOf(const std::string& head, const std::string& name) {
  const std::string before = "\r\n" + name + ": ";
  const size_t at = head.find(before);
  if (at == std::string::npos) return {};
  const size_t value = at + before.size();
  return head.substr(value, head.find("\r\n", value) - value);
}

}  // namespace

HttpReply HttpGet(int port, const std::string& path) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof kTimeout);
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: localhost\r\n\r\n";
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      write(fd.get(), request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
    return {};
  }
  std::string answer;
  std::array<char, 65536> chunk{};
  for (ssize_t n = 0; (n = read(fd.get(), chunk.data(), chunk.size())) > 0;) {
    answer.append(chunk.data(), static_cast<size_t>(n));
  }
  const size_t body = answer.find("\r\n\r\n");
  const size_t status = answer.find(' ');
  if (body == std::string::npos || status > body) return {};
  return {.status = std::atoi(answer.c_str() + status),
          .content_type = HeaderOf(answer.substr(0, body), "Content-Type"),
          .body = answer.substr(body + 4)};
}

std::string Scrape::Get(int port, const std::string& path) {
  HttpReply reply = HttpGet(port, path);
  return reply.status == 200 ? std::move(reply.body) : std::string();
}

Scrape::Scrape(const std::string& page) {
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    const size_t blank = line.rfind(' ');
    if (blank == std::string::npos) continue;
    const size_t brace = line.find('{');
    Sample sample;
    sample.value = std::strtod(line.c_str() + blank + 1, nullptr);
    const std::string name = line.substr(0, std::min(brace, blank));
    // Labels in tests contain neither quotes nor backslashes.
    for (size_t at = brace; at < blank && line[at] != '}';) {
      const size_t equals = line.find("=\"", at);
      const size_t end = line.find('"', equals + 2);
      if (equals == std::string::npos || end == std::string::npos) break;
      sample.labels[line.substr(at + 1, equals - at - 1)] =
          line.substr(equals + 2, end - equals - 2);
      at = end + 1;
    }
    samples_.emplace(name, std::move(sample));
  }
}

bool Scrape::Sample::Has(const Labels& wanted) const {
  return std::ranges::all_of(wanted, [this](const auto& label) {
    const auto found = labels.find(label.first);
    return found != labels.end() && found->second == label.second;
  });
}

std::optional<double> Scrape::Sum(const std::string& name, const Labels& labels) const {
  std::optional<double> sum;
  const auto [begin, end] = samples_.equal_range(name);
  for (auto it = begin; it != end; ++it) {
    if (it->second.Has(labels)) sum = sum.value_or(0) + it->second.value;
  }
  return sum;
}

size_t Scrape::Count(const std::string& name, const Labels& labels) const {
  const auto [begin, end] = samples_.equal_range(name);
  return static_cast<size_t>(
      std::count_if(begin, end, [&](const auto& item) { return item.second.Has(labels); }));
}

std::set<std::string> Scrape::Names() const {
  std::set<std::string> names;
  for (const auto& [name, sample] : samples_) names.insert(name);
  return names;
}

int PortIn(const std::string& log_path, const std::string& event) {
  int port = 0;
  std::ifstream log(log_path);
  for (std::string line; std::getline(log, line);) {
    const size_t at = line.find(" port=");
    if (line.find(event) != std::string::npos && at != std::string::npos) {
      port = std::atoi(line.c_str() + at + 6);
    }
  }
  return port;
}

}  // namespace gpushm::plugin::testing
