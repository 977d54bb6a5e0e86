#include "plugin/inventory/room_file.h"

#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "contract/node_labels.h"
#include "platform/base/clock.h"
#include "platform/base/files.h"
#include "platform/base/status.h"
#include "platform/daemon/log.h"

namespace gpushm::plugin::inventory {
namespace {

// NFD reads no file in a folder, nor one whose name begins with a dot.
constexpr char kOwnFolder[] = "/.gpushm";

}  // namespace

std::string RoomText(const std::vector<uint32_t>& largest_free, int64_t expires_unix_s) {
  const time_t expires = expires_unix_s;
  tm utc{};
  gmtime_r(&expires, &utc);
  char time[32];
  (void)strftime(time, sizeof(time), "%Y-%m-%dT%H:%M:%SZ", &utc);
  std::string text = Concat("# Written by gpushm-plugin.\n# +expiry-time=", time, "\n");
  for (size_t i = 0; i < largest_free.size(); ++i) {
    text += Concat(LargestFreeLabel(i + 1), "=", largest_free[i], "\n");
  }
  return text;
}

struct RoomFile::State {
  std::string folder;
  Times times;
  std::mutex mutex;  // Guards what follows.
  std::condition_variable changed;
  bool stopping = false;
  bool ended = false;
  std::optional<std::vector<uint32_t>> wanted;

  std::string path() const { return folder + "/gpushm"; }
  Result<void> Write(const std::vector<uint32_t>& largest_free) const;
};

RoomFile::RoomFile(const std::string& folder, Times times) : state_(std::make_shared<State>()) {
  state_->folder = folder;
  state_->times = times;
  std::thread([state = state_] { Run(state); }).detach();
}

RoomFile::~RoomFile() { Stop(); }

void RoomFile::Offer(std::vector<uint32_t> largest_free) {
  const std::lock_guard lock(state_->mutex);
  state_->wanted = std::move(largest_free);
  state_->changed.notify_all();
}

void RoomFile::Stop() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, std::chrono::milliseconds(kEndsMs),
                           [this] { return state_->ended; });
}

void RoomFile::Remove() {
  Stop();
  const auto removed = SystemFiles().Unlink(state_->path());
  if (!removed && removed.error().code() != Code::kNotFound) {
    LogWarning("room-not-told", {{"file", state_->path()}, {"reason", removed.error().ToString()}});
  }
}

void RoomFile::Run(const std::shared_ptr<State>& state) {
  bool failing = false;
  std::unique_lock lock(state->mutex);
  const auto wait = [&](int64_t ms, auto until) {
    state->changed.wait_for(lock, std::chrono::milliseconds(ms), until);
  };
  while (!state->stopping) {
    if (!state->wanted) {
      state->changed.wait(lock);
      continue;
    }
    const std::vector<uint32_t> told = *std::exchange(state->wanted, std::nullopt);
    lock.unlock();
    const auto written = state->Write(told);
    if (!written && !failing) {
      LogWarning("room-not-told",
                 {{"file", state->path()}, {"reason", written.error().ToString()}});
    }
    failing = !written;
    lock.lock();
    wait(state->times.between_changes_ms, [&] { return state->stopping; });
    wait(state->times.refresh_ms,
         [&] { return state->stopping || (state->wanted && *state->wanted != told); });
  }
  state->ended = true;
  state->changed.notify_all();
}

Result<void> RoomFile::State::Write(const std::vector<uint32_t>& largest_free) const {
  Files& files = SystemFiles();
  const int64_t expires_ns = UnixNs() + times.expires_ms * 1'000'000;
  const std::string text = RoomText(largest_free, expires_ns / 1'000'000'000);
  const std::string own = folder + kOwnFolder;
  Result<void> done = files.MakeFolder(own);
  if (!done && done.error().code() != Code::kAlreadyExists) return done;
  done = ReplaceFile(files, own + "/gpushm", text, 0644, Durability::kProcess);
  return done ? files.Rename(own + "/gpushm", path()) : done;
}

}  // namespace gpushm::plugin::inventory
