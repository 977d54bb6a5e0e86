// Goal: a line is written whole or not at all, omissions are counted, and long text from a client
// is never logged in full.
// Method: a pipe replaces standard error.
#include "platform/daemon/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "platform/base/unique_fd.h"

namespace gpushm {
namespace {

using Json = nlohmann::json;

// While the object lives, standard error is a pipe of two pages.
class StderrPipe {
 public:
  StderrPipe() : before_(dup(STDERR_FILENO)) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    read_end_ = UniqueFd(ends[0]);
    const UniqueFd write_end(ends[1]);
    EXPECT_GE(fcntl(write_end.get(), F_SETPIPE_SZ, 2 * PIPE_BUF), 0);
    dup2(write_end.get(), STDERR_FILENO);
  }
  ~StderrPipe() { End(); }

  // Fills the pipe, or leaves room for one page.
  void Fill(int pages) {
    for (int i = 0; i < pages; ++i) {
      const std::string page = std::string(PIPE_BUF - 1, '#') + "\n";
      EXPECT_EQ(write(STDERR_FILENO, page.data(), page.size()), PIPE_BUF);
    }
  }
  // Reads what is in the pipe now.
  std::string Drain() {
    std::string text;
    std::array<char, PIPE_BUF> chunk{};
    pollfd readable{.fd = read_end_.get(), .events = POLLIN, .revents = 0};
    while (poll(&readable, 1, 0) == 1 && (readable.revents & POLLIN) != 0) {
      const ssize_t got = read(read_end_.get(), chunk.data(), chunk.size());
      if (got <= 0) break;
      text.append(chunk.data(), static_cast<size_t>(got));
    }
    return text;
  }
  // Reads until End, on another thread.
  std::string ReadAll() {
    std::string text;
    std::array<char, PIPE_BUF> chunk{};
    for (ssize_t got = 0; (got = read(read_end_.get(), chunk.data(), chunk.size())) > 0;) {
      text.append(chunk.data(), static_cast<size_t>(got));
    }
    return text;
  }
  // Restores standard error, and ends the pipe.
  void End() {
    if (before_) dup2(before_.get(), STDERR_FILENO);
    before_.Reset();
  }

 private:
  UniqueFd before_;
  UniqueFd read_end_;
};

// Each line must end with a newline, be JSON and fit into one write. Filler lines are left out.
std::vector<Json> Lines(const std::string& text) {
  std::vector<Json> lines;
  EXPECT_TRUE(text.empty() || text.ends_with('\n')) << "only a part of a line was written";
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line == std::string(PIPE_BUF - 1, '#')) continue;
    EXPECT_LT(line.size(), size_t{PIPE_BUF});
    const Json parsed = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(parsed.is_discarded()) << line;
    if (!parsed.is_discarded()) lines.push_back(parsed);
  }
  return lines;
}

// Only the first lines of each event in a window are written, and a test may run many times.
int run = 0;
std::string Event(const std::string& name) { return name + "-" + std::to_string(run); }

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    ++run;
    Use(LogLevel::kInfo);
  }
  ~LogTest() override { ConfigureLog({}); }
  static void Use(LogLevel level) { ConfigureLog({.level = level, .format = LogFormat::kJson}); }

  StderrPipe stderr_;
};

TEST_F(LogTest, LinesThatTheLevelFiltersOutTakeNoPlaceInTheWindow) {
  Use(LogLevel::kWarning);
  for (int i = 0; i < 100; ++i) LogInfo(Event("filtered"), {{"number", i}});
  LogWarning(Event("filtered"), {{"number", 1}});
  const std::vector<Json> lines = Lines(stderr_.Drain());
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("level"), "warning");
  EXPECT_FALSE(lines[0].contains("suppressed"));
}

TEST_F(LogTest, LinesThatTheLevelFiltersOutDoNotTakeTheCountOfLostOnes) {
  Use(LogLevel::kWarning);
  stderr_.Fill(2);
  for (int i = 0; i < 3; ++i) LogWarning(Event("lost"), {{"number", i}});
  EXPECT_TRUE(Lines(stderr_.Drain()).empty());
  LogInfo(Event("told-nothing"), {});
  LogWarning(Event("told"), {});
  const std::vector<Json> lines = Lines(stderr_.Drain());
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].value("lost_lines", 0), 3);
}

TEST_F(LogTest, ALineThatIsLostItselfDoesNotTakeTheCountWithIt) {
  stderr_.Fill(2);
  for (int i = 0; i < 5; ++i) LogInfo(Event("lost-again"), {});
  stderr_.Drain();
  LogInfo(Event("told"), {});
  LogInfo(Event("told"), {});
  const std::vector<Json> lines = Lines(stderr_.Drain());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].value("lost_lines", 0), 5);
  EXPECT_FALSE(lines[1].contains("lost_lines"));
}

// Goal: no partial lines.
// Method: values longer than what a pipe takes at once, and room for one page.
TEST_F(LogTest, ALongLineIsWholeOrAbsent) {
  stderr_.Fill(1);
  const std::string large(6000, 'x');
  LogInfo(Event("large"), {{"first", large}, {"second", large}});
  LogInfo(Event("large"), {{"first", large}, {"second", large}});
  LogInfo(Event("small"), {});
  const std::vector<Json> before = Lines(stderr_.Drain());
  LogInfo(Event("after"), {});
  const std::vector<Json> after = Lines(stderr_.Drain());
  ASSERT_EQ(after.size(), 1U);
  EXPECT_EQ(before.size() + static_cast<size_t>(after[0].value("lost_lines", 0)), 3U);
}

TEST_F(LogTest, WithSlowReadersEachLineIsWholeAndTheOthersAreCounted) {
  constexpr int kThreads = 4;
  constexpr int kLines = 400;
  std::string text;
  std::thread reader([&] { text = stderr_.ReadAll(); });
  std::vector<std::thread> writers;
  for (int thread = 0; thread < kThreads; ++thread) {
    writers.emplace_back([thread] {
      for (int i = 0; i < kLines; ++i) {
        // Only the first lines of each event in a window are written, so each line is an event of
        // its own.
        LogInfo(Event("line-") + std::to_string(thread) + "-" + std::to_string(i),
                {{"value", std::string(static_cast<size_t>(i) * 7, 'v')}});
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  // The last line reports what was lost before it, so it must have room.
  uint64_t lost_itself = 0;
  pollfd writable{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  ASSERT_EQ(poll(&writable, 1, 30'000), 1);
  LogInfo(Event("last"), {});
  stderr_.End();
  reader.join();
  uint64_t written = 0;
  for (const Json& line : Lines(text)) {
    ++written;
    lost_itself += line.value("lost_lines", uint64_t{0});
  }
  EXPECT_EQ(written + lost_itself, uint64_t{kThreads * kLines + 1});
}

TEST_F(LogTest, ALongValueIsCutAndSaysHowMuchIsMissing) {
  constexpr size_t kSent = 4 << 20;
  for (const char* const filler : {"a", "\x01", "\"", "\xc3\xa4"}) {
    std::string sent;
    while (sent.size() < kSent) sent += filler;
    LogInfo(Event("cut-") + std::to_string(static_cast<unsigned char>(filler[0])),
            {{"value", sent}, {"after", "kept"}});
    const std::vector<Json> lines = Lines(stderr_.Drain());
    ASSERT_EQ(lines.size(), 1U);
    const std::string value = lines[0].at("value");
    const size_t mark = value.find("...(");
    ASSERT_NE(mark, std::string::npos);
    EXPECT_EQ(value.substr(mark), "...(" + std::to_string(kSent - mark) + " more bytes)");
    EXPECT_TRUE(sent.starts_with(value.substr(0, mark)));
    EXPECT_EQ(lines[0].at("after"), "kept");
  }
}

TEST_F(LogTest, AValueOfTheLongestLengthIsWhole) {
  LogInfo(Event("whole"), {{"value", std::string(kMaxLogValueBytes, 'x')}});
  LogInfo(Event("whole"), {{"value", std::string(kMaxLogValueBytes + 1, 'x')}});
  const std::vector<Json> lines = Lines(stderr_.Drain());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("value"), std::string(kMaxLogValueBytes, 'x'));
  EXPECT_NE(lines[1].at("value").get<std::string>().find("more bytes)"), std::string::npos);
}

// Goal: a line with many long values still has all of its fields.
TEST_F(LogTest, ManyLongValuesShareTheLine) {
  for (const char* const filler : {"x", "\x02"}) {
    std::string large;
    for (int i = 0; i < 5000; ++i) large += filler;
    LogInfo(Event("many"), {{"a", large},
                            {"b", large},
                            {"c", large},
                            {"d", large},
                            {"e", large},
                            {"f", large},
                            {"g", large},
                            {"h", large},
                            {"number", UINT64_MAX}});
  }
  const std::vector<Json> lines = Lines(stderr_.Drain());
  ASSERT_EQ(lines.size(), 2U);
  for (const Json& line : lines) {
    EXPECT_EQ(line.at("number"), UINT64_MAX);
    for (const char* const key : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
      EXPECT_NE(line.at(key).get<std::string>().find("more bytes)"), std::string::npos) << key;
    }
  }
}

// Goal: after standard error took only a part of a line, the next line starts on a new line.
// Method: a file that cannot grow in the middle of a line, as on a full disk.
TEST(Log, APartOfALineIsEndedBeforeTheNextOne) {
  ++run;
  ConfigureLog({.level = LogLevel::kInfo, .format = LogFormat::kJson});
  const UniqueFd file(memfd_create("log", MFD_CLOEXEC));
  const UniqueFd before(dup(STDERR_FILENO));
  dup2(file.get(), STDERR_FILENO);
  rlimit unlimited{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  const auto former = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 100, .rlim_max = unlimited.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  LogInfo(Event("half"), {{"value", std::string(200, 'x')}});
  setrlimit(RLIMIT_FSIZE, &unlimited);
  signal(SIGXFSZ, former);
  LogInfo(Event("whole"), {});
  dup2(before.get(), STDERR_FILENO);
  ConfigureLog({});
  std::array<char, 1024> bytes{};
  const ssize_t size = pread(file.get(), bytes.data(), bytes.size(), 0);
  ASSERT_GT(size, 100);
  ASSERT_EQ(bytes[100], '\n');
  const std::vector<Json> lines =
      Lines(std::string(bytes.data() + 101, static_cast<size_t>(size) - 101));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("event"), Event("whole"));
  EXPECT_EQ(lines[0].value("lost_lines", 0), 1);
}

}  // namespace
}  // namespace gpushm
