#include "plugin/cdi/host_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <deque>
#include <vector>

namespace gpushm::plugin::cdi {
namespace {

constexpr int kMaxLinks = 40;  // As in the kernel.

// Inserts the parts of a path before those that are still to be walked.
void Prepend(const std::string& path, std::deque<std::string>* parts) {
  std::vector<std::string> found;
  for (size_t begin = 0; begin < path.size();) {
    size_t end = path.find('/', begin);
    if (end == std::string::npos) end = path.size();
    if (end > begin) found.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  parts->insert(parts->begin(), found.begin(), found.end());
}

std::string Join(const std::vector<std::string>& parts) {
  std::string path;
  for (const std::string& part : parts) path += "/" + part;
  return path;
}

}  // namespace

std::optional<std::string> ResolveIn(const std::string& root, const std::string& path) {
  std::deque<std::string> ahead;
  std::vector<std::string> walked;
  Prepend(path, &ahead);
  int links = 0;
  while (!ahead.empty()) {
    const std::string part = ahead.front();
    ahead.pop_front();
    if (part == ".") continue;
    if (part == "..") {
      if (!walked.empty()) walked.pop_back();
      continue;
    }
    walked.push_back(part);
    const std::string seen = root + Join(walked);
    struct stat info{};
    if (lstat(seen.c_str(), &info) != 0) return {};
    if (!S_ISLNK(info.st_mode)) continue;
    std::string target(PATH_MAX, '\0');
    const ssize_t size = readlink(seen.c_str(), target.data(), target.size());
    if (size <= 0 || ++links > kMaxLinks) return {};
    target.resize(static_cast<size_t>(size));
    walked.pop_back();
    if (target.front() == '/') walked.clear();
    Prepend(target, &ahead);
  }
  return walked.empty() ? "/" : Join(walked);
}

bool Exists(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0;
}

}  // namespace gpushm::plugin::cdi
