// Tells Node Feature Discovery (NFD) how much room the node's GPUs have: a feature file, from which
// NFD makes labels of the node (docs/design/placement.md). So the plugin needs no access to the API
// server.
//
// The file says itself when it expires, so the labels of a plugin that died, or that offers nothing
// any more, end. It is renamed into
// NFD's folder from a folder below it: NFD reads as soon as anything changes there, and must not
// read before the new file is in its place. It overlooks a second change within one second, so
// changes are kept apart.
//
// Threads: any. Only Stop, Remove and the destructor wait, at most kEndsMs: a thread of its own
// writes, and is left alone if the disk hangs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpushm::plugin::inventory {

// The file's text. `largest_free`: of Book::LargestFree.
std::string RoomText(const std::vector<uint32_t>& largest_free, int64_t expires_unix_s);

class RoomFile {
 public:
  struct Times {
    int64_t expires_ms = 180'000;
    int64_t refresh_ms = 60'000;
    int64_t between_changes_ms = 2'000;
  };

  static constexpr int64_t kEndsMs = 1000;

  explicit RoomFile(const std::string& folder) : RoomFile(folder, Times()) {}
  RoomFile(const std::string& folder, Times times);
  // As Stop.
  ~RoomFile();

  // To be called again and again, also without a change.
  void Offer(std::vector<uint32_t> largest_free);
  // Writes nothing from now on. The file stays: it expires, or the next plugin replaces it.
  void Stop();
  // As Stop, and removes the file, because nobody keeps it up to date any more.
  void Remove();

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace gpushm::plugin::inventory
