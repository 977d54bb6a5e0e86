#include "contract/status/mps_state.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "platform/base/clock.h"
#include "platform/base/unique_fd.h"

namespace gpushm::status {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostBytes = 4096;
constexpr int64_t kOldMs = 15'000;  // Seven writes were missed, or the daemon hangs.

std::unexpected<Status> NotValid(std::string_view why) {
  return Fail(Code::kCorrupt, Concat("not a file that gpushm-mps wrote: ", why));
}

// Between 0 and 2^53, which every reader of JSON can hold.
uint64_t Number(const Json& json, const char* name) {
  const Json& value = json.at(name);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{1} << 53) {
    throw std::out_of_range(Concat(name, " is not a number between 0 and 2^53"));
  }
  return value.get<uint64_t>();
}

}  // namespace

bool MpsState::IsReady() const {
  return state == kMpsReady && std::llabs(UnixNs() / 1'000'000 - time_unix_ms) < kOldMs;
}

std::string ToJson(const MpsState& state) {
  const Json json = {{"state", state.state},
                     {"daemon_restarts", state.daemon_restarts},
                     {"server_restarts", state.server_restarts},
                     {"server_pid", state.server_pid},
                     {"server_active", state.server_active},
                     {"clients", state.clients},
                     {"time_unix_ms", state.time_unix_ms}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<MpsState> MpsStateFromJson(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    return MpsState{.state = json.at("state").get<std::string>(),
                    .daemon_restarts = Number(json, "daemon_restarts"),
                    .server_restarts = Number(json, "server_restarts"),
                    .server_pid = static_cast<int64_t>(Number(json, "server_pid")),
                    .server_active = json.at("server_active").get<bool>(),
                    .clients = Number(json, "clients"),
                    .time_unix_ms = static_cast<int64_t>(Number(json, "time_unix_ms"))};
  } catch (const std::exception& error) {  // Of the JSON library, or of Number().
    return NotValid(error.what());
  }
}

Result<MpsState> ReadMpsState(const std::string& folder) {
  const std::string path = Concat(folder, "/", kMpsStateFile);
  struct stat parent{};
  struct stat file{};
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!fd && errno == ENOENT) return Fail(Code::kNotFound, Concat(path, " does not exist"));
  if (!fd || stat(folder.c_str(), &parent) != 0 || fstat(fd.get(), &file) != 0) {
    return FailSystem(errno, Concat("read ", path));
  }
  if (!S_ISREG(file.st_mode) || file.st_dev != parent.st_dev) {
    return NotValid(Concat(path, " is not a regular file of that folder"));
  }
  std::array<char, kMostBytes> bytes{};
  const ssize_t got = pread(fd.get(), bytes.data(), bytes.size(), 0);
  if (got < 0) return FailSystem(errno, Concat("read ", path));
  return MpsStateFromJson({bytes.data(), static_cast<size_t>(got)});
}

}  // namespace gpushm::status
