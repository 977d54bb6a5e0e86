// The loads of `file:`, which the broker makes itself.
//
// The broker never touches a path of a pod's volume, because a hung volume (NFS, FUSE) blocks every
// process that does. A loader opens the file, writes "opened <bytes> <1: a pipe> <bytes of the
// description, for a model>" and waits for its turn, so a hung file holds up only its own load. If
// the file does not exist (an init container may still write it) or a process has a lease on it,
// the loader waits for a while and writes "waiting". It then ends with NOT_FOUND or CONTENDED, and
// another loader is started after the loads that wait for other files have had their turn.
//
// At most kLoaders are about to open files, or wait for their turn: the same number for each GPU,
// at least two, so that the files of one GPU leave loaders for the others. At most two are for a
// volume that has not answered any of them yet, so a hung volume leaves loaders for the others.
// Loaders that have hung for Settings::hang_ms do not count, so many hung volumes do not keep other
// files from being loaded either. Each costs two processes.
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/daemon/event_loop.h"
#include "sidecar/broker/child.h"
#include "sidecar/broker/transfer.h"

namespace gpushm::broker {

class FileLoads {
 public:
  // Each is a process of about 1 MiB, in addition to the buffers' pages in the sidecar's memory.
  static constexpr int kLoaders = 8;

  struct File {
    std::string buffer;
    uint32_t gpu = 0;    // The number of the buffer's GPU.
    std::string folder;  // Same as for OpenFileOf.
    std::string path;
    std::string whole() const { return folder.empty() ? path : Concat(folder, '/', path); }
  };
  struct Settings {
    std::string driver_folder;
    std::vector<std::vector<std::string>> gpus;  // By number; see Gpu::ChildArguments.
    int64_t hang_ms = 10'000;  // After this time the log reports a file that cannot be opened.
  };
  struct Events {
    // Whether the buffer still waits for its file.
    std::function<bool(const std::string& buffer)> is_wanted;
    // Loads it. Fails with kBusy if it cannot be loaded now. Takes the loader over only on success.
    std::function<Result<void>(const std::string& buffer, OpenedFile* file)> load;
    // The buffer cannot be loaded.
    std::function<void(const std::string& buffer, const Status& why)> on_failure;
  };

  FileLoads(EventLoop* loop, Children* children, Settings settings, Events events);
  ~FileLoads();
  FileLoads(const FileLoads&) = delete;
  FileLoads& operator=(const FileLoads&) = delete;

  void Add(File file);
  // Repeats a load that gave way to another transfer. It starts only after its previous loader has
  // ended; otherwise a hanging load would lead to many hanging loaders.
  void Again(const std::string& buffer, std::shared_ptr<const bool> loader_ended);

 private:
  // State of a loader's volume: no answer yet, answered, or no answer for hang_ms.
  enum class Volume { kNone, kUnheard, kAnswers, kHangs };  // kNone: there is no loader.

  struct Load {
    File file;
    std::unique_ptr<Child> loader;
    Volume volume = Volume::kNone;
    std::optional<OpenedFile> opened;
    std::optional<Status> failure;  // What the loader reported.
    bool said_waiting = false;
    bool said_not_started = false;  // In this attempt.
    uint64_t timer = 0;             // Until the next attempt, or until the loader counts as hung.
    std::shared_ptr<const bool> former_ended;  // Null if there is none.
  };

  void Queue(const std::string& buffer, int64_t wait_ms);
  void StartLoaders();
  void StartLoader(Load& load);
  void OnLine(Load& load, const std::string& line);
  void OnLoaderEnded(Load& load, int status);
  void OnHang(Load& load);
  void SetVolume(Load& load, Volume volume);
  bool HasLoader(uint32_t gpu) const;  // Whether there may be one more.
  void TryLoad(Load& load);
  void Done(Load& load);  // Its loader ends, or has ended.
  void GiveUp(Load& load, const Status& why);

  EventLoop* loop_;
  Children* children_;
  const Settings settings_;
  const Events events_;
  std::map<std::string, Load> loads_;   // By buffer. Never erased, because events refer to them.
  std::deque<Load*> queue_;             // Loads that are due for a loader.
  std::vector<int> loaders_;            // By GPU, without those that hang.
  std::map<std::string, int> unheard_;  // Loaders by volume, including those that hang.
};

}  // namespace gpushm::broker
