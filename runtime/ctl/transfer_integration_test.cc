// Loads and saves by gpushmctl (integration_testing.h).
#include <algorithm>

#include "platform/transfer/file_way.h"
#include "runtime/ctl/integration_testing.h"

namespace gpushm::ctl {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CtlTest, MovesFiles) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string file = WriteFile("model", 8 << 20);
  const Output loaded = Ctl({"load", file, "weights", "--chunk", "1Mi"});
  EXPECT_EQ(loaded.code, 0) << loaded.err;
  EXPECT_EQ(loaded.err, "") << "no progress bar without a terminal";
  const std::string copy = (dir_ / "copy").string();
  const Output saved = Ctl({"save", "weights", copy, "-o", "json"});
  EXPECT_EQ(saved.code, 0) << saved.err;
  EXPECT_TRUE(IsJson(saved.out));
  EXPECT_TRUE(Slurp(copy) == Slurp(file));
}

// Goal: a container that does not see the GPU is told from where to load and save.
TEST_F(CtlTest, WithoutTheGpuNothingMoves) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string file = WriteFile("model", 8 << 20);
  const std::string copy = (dir_ / "copy").string();
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"load", file, "weights"}, {"save", "weights", copy}}) {
    const Output blind = Ctl(words, {.environment = {"CUDA_VISIBLE_DEVICES="}});
    EXPECT_EQ(blind.code, 8) << blind.err;
    EXPECT_THAT(blind.err, HasSubstr("in a container that attaches"));
  }
  EXPECT_FALSE(fs::exists(copy));
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("ready"));
}

// Goal: a missing name gives exit code 3 immediately, and the error suggests a
// similar name. --timeout waits for the name, and that wait does not count as a stalled transfer.
TEST_F(CtlTest, AMissingBufferIsSaidAtOnceUnlessAskedToWait) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string file = WriteFile("model", 1 << 20);
  const std::string copy = (dir_ / "copy").string();
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"load", file, "weigths"}, {"save", "weigths", copy}}) {
    const Output missing = Ctl(words);
    EXPECT_EQ(missing.code, 3) << missing.err;
    EXPECT_THAT(missing.err,
                AllOf(HasSubstr("no buffer \"weigths\""), HasSubstr("did you mean \"weights\"?")));
    std::vector<std::string> patient = words;
    patient.insert(patient.end(), {"--timeout", "1500ms", "--stall-timeout", "1s"});
    const Output waited = Ctl(patient);
    EXPECT_EQ(waited.code, 6) << waited.err;
    EXPECT_THAT(waited.err, AllOf(HasSubstr("timed out waiting for"), Not(HasSubstr("stalled")),
                                  HasSubstr("did you mean \"weights\"?")));
  }
  EXPECT_FALSE(fs::exists(copy));
  // The buffer appears while the load waits.
  const pid_t loader = fork();
  if (loader == 0) {
    RedirectTo(STDERR_FILENO, "late.err");
    Exec({build_ + "/bin/gpushmctl", "load", file, "late", "--timeout", "25s"});
  }
  ASSERT_EQ(Ctl({"create", "late", "8Mi"}).code, 0);
  int status = -1;
  waitpid(loader, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << Slurp((dir_ / "late.err").string());
}

// Goal: what a load waits for, or why it failed, reaches whoever looks at the buffer or waits for
// it, until its content is there.
TEST_F(CtlTest, TheReasonReachesWhoeverWaits) {
  StartBroker("64Mi", "buffers.gpushm.io/weights: {size: 8Mi, file: models/weights.bin}");
  const auto expect_reason = [&](const std::string& state, const std::string& reason) {
    EXPECT_THAT(Ctl({"stat", "weights"}).out, AllOf(HasSubstr("state:       " + state),
                                                    HasSubstr("reason:      "), HasSubstr(reason)));
    const Output json = Ctl({"stat", "weights", "-o", "json"});
    EXPECT_TRUE(IsJson(json.out)) << json.out;
    EXPECT_THAT(json.out, AllOf(HasSubstr("\"reason\": \""), HasSubstr(reason)));
    const Output waited = Ctl({"wait", "weights", "--timeout", "50ms"});
    EXPECT_NE(waited.code, 0);
    EXPECT_THAT(waited.err, AllOf(HasSubstr(reason), Not(HasSubstr("longer timeout"))));
    gpushm_open_options opening;
    GPUSHM_INIT(&opening);
    gpushm_client* client = nullptr;
    ASSERT_EQ(gpushm_open(&opening, &client), GPUSHM_OK) << gpushm_last_error()->text;
    gpushm_attach_options attaching;
    GPUSHM_INIT(&attaching);
    attaching.access = GPUSHM_ACCESS_READ;
    attaching.timeout_ms = 50;
    gpushm_attachment* attachment = nullptr;
    EXPECT_NE(gpushm_attach(client, "weights", &attaching, &attachment), GPUSHM_OK);
    EXPECT_THAT(gpushm_last_error()->text, HasSubstr(reason));
    gpushm_close(client);
  };
  EXPECT_THAT(Ctl({"stat", "weights"}).out, Not(HasSubstr("reason:")));
  const std::string missing = (dir_ / "missing.bin").string();
  EXPECT_NE(Ctl({"load", missing, "weights"}).code, 0);
  expect_reason("loading 0%", missing);

  const std::string large = WriteFile("large.bin", (8 << 20) + 1);
  EXPECT_NE(Ctl({"load", large, "weights"}).code, 0);
  expect_reason("failed", large + " has 8388609 bytes");

  ASSERT_EQ(Ctl({"load", WriteFile("right.bin", 8 << 20), "weights"}).code, 0);
  EXPECT_THAT(Ctl({"stat", "weights"}).out,
              AllOf(HasSubstr("state:       ready"), Not(HasSubstr("reason:"))));
  EXPECT_EQ(Ctl({"wait", "weights"}).code, 0);
  EXPECT_NE(Ctl({"load", missing, "weights"}).code, 0);
  EXPECT_THAT(Ctl({"stat", "weights"}).out, Not(HasSubstr("reason:"))) << "its content stays";
}

// Goal: every output shows how many bytes of a buffer are content, and saves write those bytes;
// --whole writes all. A new generation begins with all of its bytes as content.
TEST_F(CtlTest, ABufferKnowsTheBytesOfItsContent) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  EXPECT_THAT(Ctl({"ls", "-o", "json"}).out, HasSubstr("\"content_bytes\": 8388608"));
  const std::string file = WriteFile("model", (3 << 20) - 5);
  ASSERT_EQ(Ctl({"load", file, "weights"}).code, 0);
  EXPECT_THAT(Ctl({"ls", "-o", "json"}).out, HasSubstr("\"content_bytes\": 3145723"));
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("(3145723 bytes)"));
  const std::string copy = (dir_ / "copy").string();
  const Output saved = Ctl({"save", "weights", copy, "-o", "json"});
  EXPECT_EQ(saved.code, 0) << saved.err;
  EXPECT_THAT(saved.out, HasSubstr("\"bytes\": 3145723"));
  EXPECT_TRUE(Slurp(copy) == Slurp(file));
  ASSERT_EQ(Ctl({"save", "weights", copy, "--whole"}).code, 0);
  EXPECT_EQ(fs::file_size(copy), 8u << 20);
  gpushm_open_options opening;
  GPUSHM_INIT(&opening);
  gpushm_client* client = nullptr;
  ASSERT_EQ(gpushm_open(&opening, &client), GPUSHM_OK) << gpushm_last_error()->text;
  gpushm_create_options making;
  GPUSHM_INIT(&making);
  making.unpublished = 1;
  gpushm_attachment* next = nullptr;
  ASSERT_EQ(gpushm_replace(client, "weights", 0, &making, &next), GPUSHM_OK)
      << gpushm_last_error()->text;
  const auto content = [&] {
    gpushm_attachment_info info;
    GPUSHM_INIT(&info);
    EXPECT_EQ(gpushm_attachment_get_info(next, &info), GPUSHM_OK);
    return info.content_bytes;
  };
  EXPECT_EQ(content(), 8u << 20);
  EXPECT_EQ(gpushm_attachment_set_content(next, (8 << 20) + 1), GPUSHM_INVALID_ARGUMENT);
  ASSERT_EQ(gpushm_attachment_set_content(next, 1000), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_EQ(content(), 1000u);
  EXPECT_THAT(Ctl({"ls", "-o", "json"}).out, HasSubstr("\"content_bytes\": 3145723,"));
  ASSERT_EQ(gpushm_attachment_publish(next), GPUSHM_OK);
  EXPECT_THAT(Ctl({"ls", "-o", "json"}).out, HasSubstr("\"content_bytes\": 1000,"));
  ASSERT_EQ(gpushm_attachment_set_content(next, 2000), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_THAT(Ctl({"ls"}).out, HasSubstr("2000"));
  gpushm_close(client);
}

// Goal: a shell's pipes work in both directions, and errors are reported.
TEST_F(CtlTest, MovesStreams) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string file = WriteFile("model", (8 << 20) - 5);
  const std::string ctl = build_ + "/bin/gpushmctl ";
  const auto shell = [&](const std::string& command) { return Run({"/bin/sh", "-c", command}); };
  const Output loaded = shell("cat " + file + " | " + ctl + "load - weights");
  EXPECT_EQ(loaded.code, 0) << loaded.err;
  EXPECT_THAT(loaded.out, HasSubstr("stream (read or written in order)"));
  const std::string piped = (dir_ / "piped").string();
  const Output saved = shell(ctl + "save weights - -o json | head -c 8388603 > " + piped);
  EXPECT_EQ(saved.code, 0) << saved.err;
  EXPECT_THAT(saved.err, HasSubstr("\"file_method\": \"stream\""));
  EXPECT_TRUE(Slurp(piped) == Slurp(file));
  const Output long_one = shell("cat " + file + " " + file + " | " + ctl + "load - weights");
  EXPECT_EQ(long_one.code, 2) << long_one.err;
  EXPECT_THAT(long_one.err, HasSubstr("load \"weights\": the stream has more than the 8388608"));
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("failed"));
  const Output whole = shell(ctl + "load - weights -o json < " + file);
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("\"file_method\": \"page-cache\""));
  const std::string copy = (dir_ / "redirected").string();
  EXPECT_EQ(shell(ctl + "save weights - > " + copy).code, 0);
  EXPECT_TRUE(Slurp(copy).substr(0, (8 << 20) - 5) == Slurp(file));
  const Output turned = Ctl({"load", "weights", "-"});
  EXPECT_EQ(turned.code, 2);
  EXPECT_THAT(turned.err, HasSubstr("load - NAME"));
  const Output both = Ctl({"load", file, "weights", "--file-method", "direct", "-o", "json"});
  if (both.code == 0) {
    EXPECT_THAT(both.out, HasSubstr("\"file_method\": \"direct\""));
  } else {
    EXPECT_THAT(both.err, HasSubstr("O_DIRECT"));
  }
}

// Goal: what is not whole is not loaded, and the exit code says whether it may still come: 3 and 9,
// or not as it is: 2. Method: the commands that made it READY before.
TEST_F(CtlTest, WhatIsNotWholeIsNotLoaded) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string load = build_ + "/bin/gpushmctl load ";
  const auto shell = [&](const std::string& command) { return Run({"/bin/sh", "-c", command}); };
  const Output nothing = shell("false | " + load + "- weights");
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("the stream had nothing"));
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("failed"));
  const Output less = shell("printf 12345 | " + load + "--bytes 6 - weights");
  EXPECT_EQ(less.code, 2);
  EXPECT_THAT(less.err, HasSubstr("5 of the 6 bytes that were announced"));
  EXPECT_EQ(shell("printf 12345 | " + load + "--bytes 5 - weights").code, 0);
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("(5 bytes)"));

  const std::string empty = WriteFile("nothing", 0);
  const Output touched = Ctl({"load", empty, "weights"});
  EXPECT_EQ(touched.code, 9);
  EXPECT_THAT(touched.err, HasSubstr("is empty"));
  EXPECT_EQ(Ctl({"load", "--next", empty, "weights"}).code, 9);
  EXPECT_EQ(Ctl({"load", empty, "weights", "--timeout", "200ms"}).code, 6);
  EXPECT_EQ(Ctl({"load", "--next", empty, "weights", "--timeout", "200ms"}).code, 6);
  EXPECT_EQ(Ctl({"load", "--bytes", "7", WriteFile("six", 6), "weights"}).code, 9);
  EXPECT_EQ(Ctl({"load", "--bytes", "5", WriteFile("six", 6), "weights"}).code, 2);
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("(5 bytes)")) << "as it was";

  std::ofstream(dir_ / "pointer.safetensors")
      << "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n";
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"load", (dir_ / "pointer.safetensors").string(), "weights"},
           {"load", "--next", (dir_ / "pointer.safetensors").string(), "weights"},
           {"create", "other", "--from", (dir_ / "pointer.safetensors").string()}}) {
    const Output refused = Ctl(words);
    EXPECT_EQ(refused.code, 2) << refused.err;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("Git LFS pointer"), HasSubstr("git lfs pull")));
  }
}

// Goal: GPUDirect Storage works: the bytes are right and the method is reported.
// A refusal before the start leaves the buffer unchanged; an error in the middle does not. Method:
// fake_cufile.cc.
TEST_F(CtlTest, MovesByGpuDirectStorage) {
  setenv("GPUSHM_CUFILE", (build_ + "/fake-cufile").c_str(), 1);
  StartBroker("300Mi");
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string file = WriteFile("model", (8 << 20) - 5);
  const UniqueFd probe(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!PlanRead(probe.get(), 8 << 20, FileWay::kGds)) GTEST_SKIP() << "no O_DIRECT here";
  const std::vector<std::string> load = {"load", file, "weights", "--file-method",
                                         "gds",  "-o", "json"};
  const Output loaded = Ctl(load);
  ASSERT_EQ(loaded.code, 0) << loaded.err;
  EXPECT_THAT(loaded.out, HasSubstr("\"file_method\": \"gds\""));
  EXPECT_THAT(loaded.out, HasSubstr("\"file_reason\": \"asked for\""));
  const std::string copy = (dir_ / "copy").string();
  const Output saved = Ctl({"save", "weights", copy, "--file-method", "gds"});
  ASSERT_EQ(saved.code, 0) << saved.err;
  EXPECT_THAT(saved.out, HasSubstr(", gds (asked for)"));
  EXPECT_TRUE(Slurp(copy).substr(0, (8 << 20) - 5) == Slurp(file));
  const Output refused = Ctl(load, {.environment = {"GPUSHM_FAKE_CUFILE=no-driver"}});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("nvidia-fs driver is not loaded"), HasSubstr("load nvidia-fs")));
  EXPECT_THAT(Ctl({"stat", "weights"}).out, Not(HasSubstr("failed")));
  const Output broken = Ctl(load, {.environment = {"GPUSHM_FAKE_CUFILE=errno=5 at=5000000"}});
  EXPECT_NE(broken.code, 0);
  EXPECT_THAT(broken.err, HasSubstr("cuFileRead: Input/output error"));
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("failed"));

  // A large file, no part of it in the page cache, unless the file system is in memory.
  const std::string large = WriteFile("large", 0);
  fs::resize_file(large, 256 << 20);
  gpushm::testing::Settle(large);
  ASSERT_EQ(Ctl({"create", "more", "256Mi"}).code, 0);
  const Output chosen = Ctl({"load", large, "more"});
  ASSERT_EQ(chosen.code, 0) << chosen.err;
  EXPECT_THAT(chosen.out, AnyOf(HasSubstr(", gds (not in the page cache)"),
                                HasSubstr(", page-cache (in the page cache)"),
                                HasSubstr(", pages (in the page cache)")));
  const Output other = Ctl({"load", large, "more"}, {.environment = {"GPUSHM_CUFILE=/none"}});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.out, Not(HasSubstr(", gds")));
}

// Goal: nobody wonders why a small file takes seconds, and the speed is that of the load.
TEST_F(CtlTest, AFileThatWasJustWrittenIsWaitedForWithTheReason) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string file = (dir_ / "model").string();
  const std::string reason =
      file +
      " changed less than 3 s ago, and nothing says how long it is: it is loaded when it "
      "has not changed for 3 s; announce its size";
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--next"}}) {
    std::vector<std::string> words = {build_ + "/bin/gpushmctl", "load", file, "weights",
                                      "--stall-timeout",         "1s"};
    words.insert(words.end(), more.begin(), more.end());
    std::ofstream(file, std::ios::binary) << "12345";
    const pid_t loader = fork();
    if (loader == 0) {
      RedirectTo(STDOUT_FILENO, "new.out");
      RedirectTo(STDERR_FILENO, "new.err");
      Exec(words);
    }
    if (more.empty()) {
      EXPECT_THAT(Eventually("changed less than"), HasSubstr(reason));
    }
    int status = -1;
    waitpid(loader, &status, 0);
    const std::string said = Slurp((dir_ / "new.err").string());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << said;
    EXPECT_THAT(said, ::testing::StartsWith("gpushmctl: waits: " + reason));
    EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
    EXPECT_THAT(Slurp((dir_ / "new.out").string()),
                ::testing::ContainsRegex(" 5 in [0-9]+ms, .*, after it a wait of 2s\n"));
  }
  gpushm::testing::Settle(file);
  const Output settled = Ctl({"load", file, "weights"});
  EXPECT_EQ(settled.err, "");
  EXPECT_THAT(settled.out, Not(HasSubstr("wait")));
}

TEST_F(CtlTest, StandardInputIsCalledSo) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string load = build_ + "/bin/gpushmctl load - weights";
  const Output none = Run({"/bin/sh", "-c", "true | " + load});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("standard input: the stream had nothing"));
  EXPECT_THAT(Ctl({"stat", "weights"}).out, HasSubstr("standard input: the stream had nothing"));
  const std::string large = WriteFile("large", 9 << 20);
  EXPECT_THAT(Run({"/bin/sh", "-c", load + " < " + large}).err,
              HasSubstr("standard input has 9437184 bytes"));
  EXPECT_THAT(
      Run({"/bin/sh", "-c", build_ + "/bin/gpushmctl save weights - --file-method direct | cat"})
          .err,
      HasSubstr("standard output is a stream"));
}

// Goal: who may read a file, and as whom gpushmctl asked, are in the error.
TEST_F(CtlTest, AFileThatMayNotBeReadIsExplained) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string file = WriteFile("closed", 1 << 20);
  fs::permissions(file, fs::perms::owner_read);
  const Output closed = Ctl({"load", file, "weights"}, {.uid = kNobody});
  EXPECT_EQ(closed.code, 1);
  EXPECT_THAT(closed.err,
              HasSubstr("open " + file +
                        ", which is of user 0 and group 0 with mode 0400, as user 65534 and group "
                        "65534"));
  EXPECT_THAT(closed.err, AllOf(HasSubstr(": Permission denied\n"), HasSubstr("chmod a+rX it"),
                                HasSubstr("fsGroup"), HasSubstr("runAsUser")));
  const std::string folder = (dir_ / "folder").string();
  fs::create_directory(folder);
  const std::string inside = WriteFile("folder/model.safetensors", 16);
  fs::permissions(folder, fs::perms::owner_all);
  for (const std::string& name : {inside, folder}) {
    const Output out = Ctl({"load", name, "weights"}, {.uid = kNobody});
    EXPECT_EQ(out.code, 1);
    EXPECT_THAT(out.err, AllOf(HasSubstr("open " + name), HasSubstr("with mode 0700, as user")));
    EXPECT_EQ(out.err.find(" in the folder " + folder + ", which") != std::string::npos,
              name == inside)
        << out.err;
  }
  // A mode can be put right, so whoever may wait waits.
  const pid_t loader = fork();
  if (loader == 0) {
    Enter({.uid = kNobody});
    Exec(
        {build_ + "/bin/gpushmctl", "load", file, "weights", "--timeout", "25s", "--bytes", "1Mi"});
  }
  usleep(100'000);  // sleep: so that most runs see the mode before it changes
  fs::permissions(file, fs::perms::owner_read | fs::perms::others_read);
  int status = -1;
  waitpid(loader, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(CtlTest, StalledOrKilledInTheMiddle) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const std::string pipe = (dir_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  // Opened for reading and writing, so that the open does not block and the pipe does not end.
  const int held = open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(held, 0);
  ASSERT_EQ(write(held, "few", 3), 3);
  const Output late = Ctl({"load", pipe, "weights", "--timeout", "300ms"});
  EXPECT_EQ(late.code, 6) << late.err;
  EXPECT_THAT(Eventually("failed"), HasSubstr("failed"));
  const Output still = Ctl({"load", pipe, "weights", "--stall-timeout", "1s"});
  EXPECT_EQ(still.code, 6) << still.err;
  EXPECT_THAT(Eventually("failed"), HasSubstr("failed"));
  const pid_t loader = fork();
  if (loader == 0) {
    RedirectTo(STDERR_FILENO, "killed.err");
    Exec({build_ + "/bin/gpushmctl", "load", pipe, "weights"});
  }
  EXPECT_THAT(Eventually("loading"), HasSubstr("loading"));
  kill(loader, SIGKILL);
  waitpid(loader, nullptr, 0);
  EXPECT_THAT(Eventually("failed"), HasSubstr("failed"));
  close(held);
}

}  // namespace
}  // namespace gpushm::ctl
