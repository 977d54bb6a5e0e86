// Fetches what the plugin serves over HTTP, as Prometheus does; for tests and benchmarks.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace gpushm::plugin::testing {

struct HttpReply {
  int status = 0;  // 0: no answer in time.
  std::string content_type;
  std::string body;
};
// GET http://127.0.0.1:port/path
HttpReply HttpGet(int port, const std::string& path);

// From label name to value.
using Labels = std::map<std::string, std::string>;

class Scrape {
 public:
  // The body; empty unless the answer is 200.
  static std::string Get(int port, const std::string& path);
  explicit Scrape(const std::string& page);

  // The sum of all samples of that name with these labels; nothing if there is none.
  std::optional<double> Sum(const std::string& name, const Labels& labels = {}) const;
  size_t Count(const std::string& name, const Labels& labels = {}) const;
  // The names of all samples.
  std::set<std::string> Names() const;
  // The number of samples.
  size_t size() const { return samples_.size(); }

 private:
  struct Sample {
    Labels labels;
    double value = 0;
    bool Has(const Labels& wanted) const;
  };
  std::multimap<std::string, Sample> samples_;  // Keyed by name.
};

// The port in the last "EVENT ... port=N" of a log; 0: none yet.
int PortIn(const std::string& log_path, const std::string& event);

}  // namespace gpushm::plugin::testing
