// gpushmctl as people run it, for tests: the program, a broker, the simulated driver, and injected
// faults. Each case has its own folders; the assertions are about output and exit code.
#pragma once

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/testing.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/device.h"
#include "runtime/include/gpushm/gpushm.h"

namespace gpushm::ctl {

namespace fs = std::filesystem;

inline constexpr int kNobody = 65534;
inline constexpr int kRunMs = 30'000;

struct Output {
  int code = -1;
  std::string out;
  std::string err;
};

struct Setting {
  std::vector<std::string> environment = {};  // "K=V"; "K": unset.
  int uid = 0;
  bool own_pid_namespace = false;  // Runs as PID 1 of a new namespace.
};

inline std::string Slurp(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

inline void Enter(const Setting& setting) {
  for (const std::string& entry : setting.environment) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) {
      unsetenv(entry.c_str());
    } else {
      setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
    }
  }
  if (setting.uid != 0 && (setgid(static_cast<gid_t>(setting.uid)) != 0 ||
                           setuid(static_cast<uid_t>(setting.uid)) != 0)) {
    _exit(125);
  }
}

[[noreturn]] inline void Exec(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(126);
}

class CtlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* build = std::getenv("GPUSHM_TEST_BUILD");
    ASSERT_NE(build, nullptr) << "run by ctest, which sets GPUSHM_TEST_BUILD";
    build_ = build;
    std::string name = (fs::temp_directory_path() / "gpushmctl-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    fs::permissions(dir_, fs::perms::all);
    for (const char* folder : {"sim", "run", "run/app", "run/other"}) {
      fs::create_directory(dir_ / folder);
    }
    fs::permissions(dir_ / "sim", fs::perms::all);
    setenv("GPUSHM_DRIVER", (build_ + "/driver-sim").c_str(), 1);
    setenv("GPUSHM_SIM_DIR", (dir_ / "sim").c_str(), 1);
    setenv("GPUSHM_DIR", (dir_ / "run/app").c_str(), 1);
    setenv("TERM", "xterm", 1);
    for (const char* unset : {"GPUSHM_SIM_FAULT", "GPUSHM_CUFILE", "GPUSHM_CUFILE_COMPAT",
                              "GPUSHM_FAKE_CUFILE", "CUDA_VISIBLE_DEVICES", "NO_COLOR"}) {
      unsetenv(unset);
    }
  }

  void TearDown() override {
    StopBroker();
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }

  void StartBroker(const std::string& pool = "64Mi", const std::string& buffers = "") {
    broker_ = fork();
    if (broker_ == 0) {
      if (!buffers.empty()) setenv("GPUSHM_BUFFERS", buffers.c_str(), 1);
      RedirectTo(STDERR_FILENO, "broker.log");
      RedirectTo(STDOUT_FILENO, "broker.out");
      Exec({build_ + "/bin/gpushm-broker", "--folder", (dir_ / "run").string(), "--container",
            "app", "--container", "other", "--pool", pool});
    }
    const Output ready = Ctl({"wait", "--broker"});
    ASSERT_EQ(ready.code, 0) << ready.err << Slurp((dir_ / "broker.log").string());
  }

  void StopBroker() {
    if (broker_ <= 0) return;
    kill(broker_, SIGKILL);
    waitpid(broker_, nullptr, 0);
    broker_ = 0;
  }

  Output Ctl(std::vector<std::string> arguments, const Setting& setting = {}) {
    arguments.insert(arguments.begin(), build_ + "/bin/gpushmctl");
    return Run(arguments, setting);
  }

  Output Run(const std::vector<std::string>& words, const Setting& setting = {}) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kRunMs / 1000);
      RedirectTo(STDOUT_FILENO, "out");
      RedirectTo(STDERR_FILENO, "err");
      if (setting.own_pid_namespace) {
        if (unshare(CLONE_NEWPID) != 0) _exit(124);
        const pid_t first = fork();
        if (first == 0) {
          Enter(setting);
          Exec(words);
        }
        int status = 0;
        waitpid(first, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 123);
      }
      Enter(setting);
      Exec(words);
    }
    int status = 0;
    waitpid(child, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    return {code, Slurp((dir_ / "out").string()), Slurp((dir_ / "err").string())};
  }

  // The output of `stat weights`, as soon as it contains `text`.
  std::string Eventually(const std::string& text) {
    for (const Deadline deadline = Deadline::AfterMs(kRunMs);;) {
      const std::string found = Ctl({"stat", "weights"}).out;
      if (found.find(text) != std::string::npos || deadline.Passed()) return found;
    }
  }

  void RedirectTo(int fd, const char* name) {
    const int file = open((dir_ / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(file, fd);
    close(file);
  }

  std::string WriteFile(const std::string& name, size_t size_bytes) {
    std::string bytes(size_bytes, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
    gpushm::testing::Settle((dir_ / name).string());
    return (dir_ / name).string();
  }

  bool IsJson(const std::string& text) {
    std::ofstream(dir_ / "json") << text;
    return Run({"/usr/bin/env", "python3", "-m", "json.tool", (dir_ / "json").string()}).code == 0;
  }

  std::string build_;
  fs::path dir_;
  pid_t broker_ = 0;
};

}  // namespace gpushm::ctl
