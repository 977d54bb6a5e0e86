// Shared by this folder's tests: a temporary folder, and Files that stop at a step.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "platform/base/files.h"
#include "platform/base/testing.h"

namespace gpushm::testing {

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Also creates the parent folders.
inline void WriteText(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

// Calls `stop` before step number `last`, counted from 1. A step is a system call; a write counts
// as two, with half of the bytes each.
class StoppingFiles : public Files {
 public:
  using Stop = std::function<Result<void>()>;
  StoppingFiles(int last, Stop stop) : last_(last), stop_(std::move(stop)) {}
  int steps() const { return step_; }

  Result<UniqueFd> Create(const std::string& path) override {
    if (auto go = Step(); !go) return std::unexpected(go.error());
    return Files::Create(path);
  }
  Result<void> Append(int fd, std::string_view bytes) override {
    if (auto go = Step(); !go) return go;
    if (auto done = Files::Append(fd, bytes.substr(0, bytes.size() / 2)); !done) return done;
    if (auto go = Step(); !go) return go;
    return Files::Append(fd, bytes.substr(bytes.size() / 2));
  }
  Result<void> SetMode(int fd, mode_t mode) override {
    auto go = Step();
    return go ? Files::SetMode(fd, mode) : go;
  }
  Result<void> Sync(int fd) override {
    auto go = Step();
    return go ? Files::Sync(fd) : go;
  }
  Result<void> Rename(const std::string& from, const std::string& to) override {
    auto go = Step();
    return go ? Files::Rename(from, to) : go;
  }
  Result<void> Unlink(const std::string& path) override {
    auto go = Step();
    return go ? Files::Unlink(path) : go;
  }
  Result<void> MakeFolder(const std::string& path) override {
    auto go = Step();
    return go ? Files::MakeFolder(path) : go;
  }
  Result<void> RemoveFolder(const std::string& path) override {
    auto go = Step();
    return go ? Files::RemoveFolder(path) : go;
  }

 private:
  Result<void> Step() {
    if (++step_ == last_) return stop_();
    return {};
  }
  int step_ = 0;
  int last_;
  Stop stop_;
};

inline StoppingFiles FailingFiles(int last) {
  return StoppingFiles(last, [] { return Fail(Code::kSystem, "no space left on device"); });
}

// Runs `work` in a process that is killed before step `last`. False: it finished before that step.
inline bool RunKilled(int last, const std::function<void(Files&)>& work) {
  const pid_t child = fork();
  if (child == 0) {
    StoppingFiles files(last, []() -> Result<void> {
      raise(SIGKILL);
      return {};
    });
    work(files);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) {
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    return true;
  }
  EXPECT_EQ(status, 0);
  return false;
}

}  // namespace gpushm::testing
