// gpushmctl load --stay (integration_testing.h): the container that loads a `file:`.
#include <poll.h>

#include <algorithm>
#include <functional>

#include "runtime/ctl/integration_testing.h"

namespace gpushm::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CtlStayTest : public CtlTest {
 protected:
  void TearDown() override {
    if (stay_ > 0) {
      kill(stay_, SIGKILL);
      waitpid(stay_, nullptr, 0);
    }
    CtlTest::TearDown();
  }
  void StartDeclared(const std::string& more = "") {
    StartBroker("64Mi", "buffers.gpushm.io/weights: {size: 8Mi, access: read-only, file: m/model" +
                            more + "}\n");
  }
  // As the injector starts it, on the socket of the buffer's loader.
  void StartStay(const std::string& file) {
    for (const char* name : {"stay.out", "stay.err"}) std::ofstream(dir_ / name).close();
    stay_ = fork();
    if (stay_ == 0) {
      setenv("GPUSHM_DIR", (dir_ / "run/gpushm-load-weights").c_str(), 1);
      RedirectTo(STDOUT_FILENO, "stay.out");
      RedirectTo(STDERR_FILENO, "stay.err");
      Exec({build_ + "/bin/gpushmctl", "load", "--stay", file, "weights", "--chunk", "1Mi"});
    }
  }
  std::string Said() const { return Slurp((dir_ / "stay.err").string()); }
  static bool Until(const std::function<bool()>& holds) {
    for (const Deadline deadline = Deadline::AfterMs(kRunMs); !deadline.Passed();) {
      if (holds()) return true;
      poll(nullptr, 0, 10);  // sleep: between two looks, until the deadline
    }
    return false;
  }
  bool Says(const std::string& text, size_t times = 1) {
    return Until([&] {
      const std::string said = Said();
      size_t count = 0;
      for (size_t at = said.find(text); at != std::string::npos; at = said.find(text, at + 1)) {
        ++count;
      }
      return count >= times;
    });
  }
  // Its child that loads; 0: none.
  pid_t Child() const {
    const std::string of = std::to_string(stay_);
    std::ifstream children("/proc/" + of + "/task/" + of + "/children");
    pid_t child = 0;
    children >> child;
    return child;
  }
  // The exit code after SIGTERM.
  int Ends() {
    kill(stay_, SIGTERM);
    int status = -1;
    waitpid(std::exchange(stay_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  pid_t stay_ = 0;
};

// Goal: it waits for broker and file, loads what nobody else may, and then costs next to nothing.
TEST_F(CtlStayTest, LoadsWhatAppearsAndStays) {
  const std::string file = (dir_ / "late").string();
  StartStay(file);
  EXPECT_TRUE(Says("waits for the broker")) << Said();
  StartDeclared(", containers: [other]");
  EXPECT_TRUE(Says("gpushmctl: \"weights\" is not loaded: load \"weights\": no such file: " + file +
                   "; gpushmctl tries again every second\n"))
      << Said();
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("loading"));
  const std::string whole = WriteFile("whole", 3 << 20);
  fs::rename(whole, file);
  EXPECT_TRUE(Says("has its content, 3145728 bytes")) << Said();
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("ready"));
  EXPECT_THAT(Slurp((dir_ / "stay.out").string()), HasSubstr("loaded "));
  const std::string of = "/proc/" + std::to_string(stay_);
  EXPECT_THAT(Slurp(of + "/maps"), Not(HasSubstr("libcuda"))) << "it makes no context";
  EXPECT_EQ(Child(), 0);
  const std::string status = Slurp(of + "/status");
  const size_t at = status.find("VmRSS:");
  ASSERT_NE(at, std::string::npos);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(std::stol(status.substr(at + 6)), 10 << 10) << "KiB";
#endif
  EXPECT_EQ(Ends(), 0);
}

TEST_F(CtlStayTest, AnotherOneLeavesTheContentAlone) {
  StartDeclared();
  const std::string file = WriteFile("model", 1 << 20);
  StartStay(file);
  ASSERT_TRUE(Says("has its content")) << Said();
  const std::string before = Ctl({"stat", "weights", "-o", "json"}).out;
  ASSERT_EQ(Ends(), 0);
  fs::remove(file);
  StartStay(file);
  EXPECT_TRUE(Says("has its content")) << Said();
  EXPECT_THAT(Said(), Not(HasSubstr("is not loaded")));
  EXPECT_EQ(Slurp((dir_ / "stay.out").string()), "");
  EXPECT_EQ(Ends(), 0);
}

// Goal: a child that dies in the middle is followed by another one, and nobody sees a failure, nor
// half of the content. Method: a pipe, which the child reads for as long as the test wants.
TEST_F(CtlStayTest, AKilledLoadIsRepeated) {
  StartDeclared();
  const std::string pipe = (dir_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int held = open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(held, 0);
  const std::string part(5 << 20, 'x');  // More than the chunks that are under way at once.
  const auto loads_part = [&] {
    if (write(held, part.data(), part.size()) != static_cast<ssize_t>(part.size())) return false;
    return Until([&] {
      const std::string stat = Ctl({"stat", "weights", "-o", "json"}).out;
      return stat.find("\"loaded_bytes\": 0,") == std::string::npos;
    });
  };
  StartStay(pipe);
  ASSERT_TRUE(Until([&] { return Child() != 0; })) << Said();
  ASSERT_TRUE(loads_part()) << Said();
  const pid_t first = Child();
  ASSERT_EQ(kill(first, SIGKILL), 0);
  EXPECT_TRUE(Says("is not loaded: signal 9 ended the load; gpushmctl tries again within 16 s\n"))
      << Said();
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("loading"));
  ASSERT_TRUE(Until([&] { return Child() != 0 && Child() != first; })) << Said();
  ASSERT_TRUE(loads_part()) << Said();
  close(held);  // The second child has it open, so it reads its end.
  EXPECT_TRUE(Says("has its content, ")) << Said();
  EXPECT_EQ(Ends(), 0);
}

// Goal: what passes by itself is no failure to whoever waits for the content. Method: the file,
// which is as new as its last byte, is replaced while it settles.
TEST_F(CtlStayTest, AFileThatIsReplacedDuringItsLoadIsNoFailure) {
  StartDeclared();
  const auto written_now = [&](const char* name, size_t bytes) {
    const std::string path = WriteFile(name, bytes);
    fs::last_write_time(path, fs::file_time_type::clock::now());
    return path;
  };
  const std::string file = written_now("model", 3 << 20);
  StartStay(file);
  const auto loads = [&] {
    return Ctl({"stat", "weights", "-o", "json"}).out.find("\"holders\": []") == std::string::npos;
  };
  ASSERT_TRUE(Until(loads)) << Said();
  fs::rename(written_now("next", 5 << 20), file);
  const Output waited = Ctl({"wait", "weights", "--timeout", "30s"});
  EXPECT_EQ(waited.code, 0) << waited.err;
  EXPECT_THAT(Said(), HasSubstr("changed while it was loaded"));
  EXPECT_TRUE(Says("has its content, 5242880 bytes")) << Said();
  EXPECT_EQ(Ends(), 0);
}

TEST_F(CtlStayTest, WhatABrokerLostIsLoadedAgain) {
  StartDeclared();
  StartStay(WriteFile("model", 1 << 20));
  ASSERT_TRUE(Says("has its content")) << Said();
  StopBroker();
  StartDeclared();
  EXPECT_THAT(Eventually("ready"), HasSubstr("ready")) << Said();
  EXPECT_EQ(Ends(), 0);
}

// Goal: each reason is said once, a file that was corrected is loaded, and SIGTERM ends it at once.
TEST_F(CtlStayTest, ABadFileIsTriedAgain) {
  StartDeclared();
  const std::string file = WriteFile("large", 9 << 20);
  StartStay(file);
  ASSERT_TRUE(Says("has 9437184 bytes, but the buffer has 8388608")) << Said();
  EXPECT_THAT(Said(), HasSubstr("; gpushmctl tries again every second\n"));
  usleep(2'500'000);  // sleep: for two more attempts, of which nobody is told
  const std::string said = Said();
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  WriteFile("large", 8 << 20);
  EXPECT_TRUE(Says("has its content, 8388608 bytes")) << Said();
  EXPECT_EQ(Ends(), 0);
}

TEST_F(CtlStayTest, NeedsAFile) {
  EXPECT_EQ(Ctl({"load", "--stay", "-", "weights"}).code, 2);
  EXPECT_EQ(Ctl({"load", "--stay", "--next", "f", "weights"}).code, 2);
}

}  // namespace
}  // namespace gpushm::ctl
