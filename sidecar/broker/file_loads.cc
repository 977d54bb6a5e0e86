#include "sidecar/broker/file_loads.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "contract/limits.h"
#include "platform/daemon/log.h"
#include "platform/daemon/process.h"
#include "sidecar/broker/loader.h"

namespace gpushm::broker {
namespace {

// Time between two attempts to open a missing file, and to get the place for transfers of a GPU.
constexpr int64_t kRetryMs = 250;
// The most loaders for one volume that have not got an answer from it.
constexpr int kUnheard = 2;
// Each GPU has at least this many loaders: one that loads, and one that opens the next file.
constexpr int kLoadersOfGpu = 2;

}  // namespace

FileLoads::FileLoads(EventLoop* loop, Children* children, Settings settings, Events events)
    : loop_(loop),
      children_(children),
      settings_(std::move(settings)),
      events_(std::move(events)),
      loaders_(settings_.gpus.size()) {}

FileLoads::~FileLoads() {
  for (auto& [buffer, load] : loads_) loop_->Cancel(load.timer);
}

void FileLoads::Add(File file) {
  Load& load = loads_[file.buffer];
  load.file = std::move(file);
  queue_.push_back(&load);
  StartLoaders();
}

void FileLoads::Again(const std::string& buffer, std::shared_ptr<const bool> loader_ended) {
  const auto found = loads_.find(buffer);
  if (found == loads_.end()) return;
  found->second.former_ended = std::move(loader_ended);
  Queue(buffer, kRetryMs);
}

void FileLoads::Queue(const std::string& buffer, int64_t wait_ms) {
  Load& load = loads_.at(buffer);
  load.timer = loop_->After(wait_ms, [this, &load] {
    queue_.push_back(&load);
    StartLoaders();
  });
}

bool FileLoads::HasLoader(uint32_t gpu) const {
  const int gpus = static_cast<int>(loaders_.size());
  return loaders_.at(gpu) < std::max(kLoaders / gpus, kLoadersOfGpu);
}

void FileLoads::StartLoaders() {
  for (auto next = queue_.begin(); next != queue_.end();) {
    Load& load = **next;
    // If its volume may hang, the others go first.
    if (!HasLoader(load.file.gpu) || unheard_[load.file.folder] >= kUnheard) {
      ++next;
      continue;
    }
    next = queue_.erase(next);
    if (!events_.is_wanted(load.file.buffer)) continue;  // Loaded by an earlier broker or a client.
    if (load.former_ended && !*load.former_ended) {
      Queue(load.file.buffer, kRetryMs);
    } else {
      StartLoader(load);
    }
  }
}

void FileLoads::StartLoader(Load& load) {
  std::vector<std::string> arguments =
      LoaderArguments(protocol::Direction::kLoad, settings_.gpus.at(load.file.gpu),
                      settings_.driver_folder, /*chunk_bytes=*/0, FileWay::kAutoGds);
  arguments.insert(arguments.end(), {"--path", load.file.path});
  if (!load.file.folder.empty()) {
    arguments.insert(arguments.end(), {"--folder", load.file.folder});
  }
  auto loader = children_->Start(
      arguments, {.on_line = [this, &load](const std::string& line) { OnLine(load, line); },
                  .on_end = [this, &load](int status) { OnLoaderEnded(load, status); }});
  // Memory, descriptors or time were missing; all of these may be available again later.
  if (!loader) {
    if (!std::exchange(load.said_not_started, true)) {
      LogWarning("loader-not-started",
                 {{"buffer", load.file.buffer}, {"reason", loader.error().ToString()}});
    }
    return Queue(load.file.buffer, kRetryMs);
  }
  load.said_not_started = false;
  load.loader = std::move(*loader);
  load.failure.reset();
  SetVolume(load, Volume::kUnheard);
  load.timer = loop_->After(settings_.hang_ms, [this, &load] { OnHang(load); });
}

void FileLoads::SetVolume(Load& load, Volume volume) {
  const auto takes_place = [](Volume is) {
    return is == Volume::kUnheard || is == Volume::kAnswers;
  };
  const auto is_unheard = [](Volume is) { return is == Volume::kUnheard || is == Volume::kHangs; };
  const Volume before = std::exchange(load.volume, volume);
  loaders_.at(load.file.gpu) += (takes_place(volume) ? 1 : 0) - (takes_place(before) ? 1 : 0);
  unheard_[load.file.folder] += (is_unheard(volume) ? 1 : 0) - (is_unheard(before) ? 1 : 0);
}

void FileLoads::OnLine(Load& load, const std::string& line) {
  constexpr std::string_view kOpened = "opened ";
  SetVolume(load, Volume::kAnswers);
  if (line.starts_with("error ")) {
    load.failure = ErrorOfLoader(line);
  } else if (line.starts_with(kOpened) && !load.opened) {
    const auto [bytes, is_pipe, description_bytes] = Numbers<3>(line.substr(kOpened.size()));
    load.opened =
        OpenedFile{.loader = nullptr,
                   .bytes = bytes,
                   .is_pipe = is_pipe == 1,
                   .description_bytes = std::min(description_bytes, limits::kDescriptionBytes)};
    TryLoad(load);
  }
  StartLoaders();
}

void FileLoads::TryLoad(Load& load) {
  loop_->Cancel(load.timer);
  const std::string& buffer = load.file.buffer;
  if (!events_.is_wanted(buffer)) return Done(load);
  load.opened->loader = std::move(load.loader);
  const Result<void> started = events_.load(buffer, &*load.opened);
  if (started) return Done(load);
  load.loader = std::move(load.opened->loader);
  if (started.error().code() != Code::kBusy) return GiveUp(load, started.error());
  load.timer = loop_->After(kRetryMs, [this, &load] { TryLoad(load); });
}

void FileLoads::OnLoaderEnded(Load& load, int status) {
  loop_->Cancel(load.timer);
  const Status why =
      load.failure.value_or(Status(Code::kPeerDied, Concat("the loader ", HowItEnded(status)),
                                   "check the sidecar's log and memory limit"));
  if (why.code() != Code::kNotFound && why.code() != Code::kContended) return GiveUp(load, why);
  if (!std::exchange(load.said_waiting, true)) {
    LogInfo("file-waiting",
            {{"buffer", load.file.buffer}, {"file", load.file.whole()}, {"reason", why.what()}});
  }
  Queue(load.file.buffer, kRetryMs);
  Done(load);
}

void FileLoads::OnHang(Load& load) {
  const std::vector<HeldThread> threads = HeldThreads(load.loader->pid());
  const HeldThread held = threads.empty() ? HeldThread() : threads.front();
  LogWarning("file-hangs", {{"buffer", load.file.buffer},
                            {"file", load.file.whole()},
                            {"system_call", held.system_call},
                            {"kernel_function", held.kernel_function}});
  SetVolume(load, Volume::kHangs);
  StartLoaders();
}

void FileLoads::Done(Load& load) {
  load.loader.reset();
  load.opened.reset();
  SetVolume(load, Volume::kNone);
  StartLoaders();
}

void FileLoads::GiveUp(Load& load, const Status& why) {
  if (load.loader) Done(load);
  events_.on_failure(load.file.buffer, why);
}

}  // namespace gpushm::broker
