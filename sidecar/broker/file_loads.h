// The loads of `file:`, which the broker makes itself.
//
// The broker never touches a path of a pod's volume, which may hang (NFS, FUSE) with whoever does.
// A loader opens the file, says "opened <bytes> <1: a pipe>" and waits for its turn; one file that
// hangs holds up its own load. The loader also waits for a file that is not there (an init
// container may still write it) or that somebody has a lease on, for a while, and says "waiting":
// then it ends with NOT_FOUND or CONTENDED, and another one is started when those that wait for
// other files had their turn.
//
// At most kLoaders are about to open files, two for a volume that has not answered any of them yet,
// so a volume that hangs leaves the others their loaders. Those that have hung for
// Settings::hang_ms do not count, so neither do many such volumes keep others from being loaded:
// each costs two processes.
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

#include "platform/base/status.h"
#include "platform/daemon/event_loop.h"
#include "sidecar/broker/child.h"
#include "sidecar/broker/transfer.h"

namespace gpushm::broker {

class FileLoads {
 public:
  // A process of about 1 MiB each, beside the buffers' pages in the sidecar's memory.
  static constexpr int kLoaders = 8;

  struct File {
    std::string buffer;
    std::string folder;  // As for OpenFileOf.
    std::string path;
    std::string whole() const { return folder.empty() ? path : Concat(folder, '/', path); }
  };
  struct Settings {
    std::string driver_folder;
    int device = 0;
    int64_t hang_ms = 10'000;  // After which the log tells of a file that cannot be opened.
  };
  struct Events {
    // Whether the buffer still waits for its file.
    std::function<bool(const std::string& buffer)> is_wanted;
    // Loads it. kBusy: not now. Takes the loader over only if it succeeds.
    std::function<Result<void>(const std::string& buffer, OpenedFile* file)> load;
    // It cannot be loaded.
    std::function<void(const std::string& buffer, const Status& why)> on_failure;
  };

  FileLoads(EventLoop* loop, Children* children, Settings settings, Events events);
  ~FileLoads();
  FileLoads(const FileLoads&) = delete;
  FileLoads& operator=(const FileLoads&) = delete;

  void Add(File file);
  // The load was given up for others, and is to be made again. Not before its former loader has
  // ended: one that hangs would become many.
  void Again(const std::string& buffer, std::shared_ptr<const bool> loader_ended);

 private:
  // Of a loader's volume: said nothing yet; said something; nothing for hang_ms.
  enum class Volume { kNone, kUnheard, kAnswers, kHangs };  // kNone: there is no loader.

  struct Load {
    File file;
    std::unique_ptr<Child> loader;
    Volume volume = Volume::kNone;
    std::optional<OpenedFile> opened;
    std::optional<Status> failure;  // What the loader says.
    bool said_waiting = false;
    bool said_not_started = false;             // This time.
    uint64_t timer = 0;                        // Until the next look, or until it hangs.
    std::shared_ptr<const bool> former_ended;  // Null: there is none.
  };

  void Queue(const std::string& buffer, int64_t wait_ms);
  void StartLoaders();
  void StartLoader(Load& load);
  void OnLine(Load& load, const std::string& line);
  void OnLoaderEnded(Load& load, int status);
  void OnHang(Load& load);
  void SetVolume(Load& load, Volume volume);
  void TryLoad(Load& load);
  void Done(Load& load);  // Its loader goes, or has gone.
  void GiveUp(Load& load, const Status& why);

  EventLoop* loop_;
  Children* children_;
  const Settings settings_;
  const Events events_;
  std::map<std::string, Load> loads_;   // By buffer. Never erased: events refer to them.
  std::deque<Load*> queue_;             // Those that a loader is due for.
  int loaders_ = 0;                     // But for those that hang.
  std::map<std::string, int> unheard_;  // Loaders, those that hang as well, by volume.
};

}  // namespace gpushm::broker
