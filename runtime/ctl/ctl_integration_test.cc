// gpushmctl as people run it (integration_testing.h).
#include "platform/base/version.h"
#include "runtime/ctl/integration_testing.h"
#include "runtime/include/gpushm/sync.h"

namespace gpushm::ctl {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(CtlTest, MakesListsShowsAndRemoves) {
  StartBroker();
  const Output made = Ctl({"create", "weights", "8Mi"});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, StartsWith("created weights: 8Mi, ready, generation "));
  const Output json = Ctl({"create", "kv", "1.5Mi", "--writers", "all", "--one-writer",
                           "--on-writer-exit", "keep", "-o", "json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_TRUE(IsJson(json.out)) << json.out;
  EXPECT_THAT(json.out,
              AllOf(HasSubstr("\"size_bytes\": 1572864"), HasSubstr("\"mapped_bytes\": 2097152")));
  const Output table = Ctl({"ls"});
  EXPECT_THAT(table.out, StartsWith("NAME     GENERATION           "));
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("\nkv  "), HasSubstr("\nweights  "), Not(HasSubstr("\033"))));
  EXPECT_EQ(Ctl({"ls", "--names"}).out, "kv\nweights\n");
  EXPECT_TRUE(IsJson(Ctl({"ls", "-o", "json"}).out));
  const Output stat = Ctl({"stat", "weights"});
  EXPECT_THAT(stat.out, AllOf(HasSubstr("size:        8Mi (8388608 bytes)\n"),
                              HasSubstr("transport:   vmm\n"), HasSubstr("holders:     0\n")));
  EXPECT_TRUE(IsJson(Ctl({"stat", "weights", "-o", "json"}).out));
  EXPECT_THAT(Ctl({"stat"}).out, HasSubstr("pool:        64Mi"));
  EXPECT_TRUE(IsJson(Ctl({"stat", "-o", "json"}).out));
  EXPECT_EQ(Ctl({"rm", "weights", "kv"}).out, "removed weights\nremoved kv\n");
  EXPECT_EQ(Ctl({"ls", "-o", "json"}).out, "{\n  \"buffers\": []\n}\n");
}

// The pod declares two signals, one of them not for this container. This process makes a barrier.
TEST_F(CtlTest, ShowsSignalsAndBarriers) {
  StartBroker("64Mi",
              "{signals.gpushm.io/frame: '', signals.gpushm.io/inner: '{containers: [other]}'}");
  gpushm_client* client = nullptr;
  ASSERT_EQ(gpushm_open(nullptr, &client), GPUSHM_OK);
  gpushm_barrier_options in_step;
  GPUSHM_INIT(&in_step);
  in_step.participants = 3;
  gpushm_barrier* barrier = nullptr;
  ASSERT_EQ(gpushm_barrier_open(client, "step", &in_step, &barrier), GPUSHM_OK);
  EXPECT_THAT(Ctl({"stat", "frame"}).out, HasSubstr("kind:        signal\nat:          0\n"
                                                    "written:     unused\n"));
  gpushm_signal_options writes;
  GPUSHM_INIT(&writes);
  writes.role = GPUSHM_SIGNAL_WRITER;
  gpushm_signal* frame = nullptr;
  ASSERT_EQ(gpushm_signal_open(client, "frame", &writes, &frame), GPUSHM_OK);
  ASSERT_EQ(gpushm_signal_set(frame, 42), GPUSHM_OK);
  const Output table = Ctl({"ls"});
  EXPECT_THAT(table.out, AllOf(MatchesRegex(".*\nframe +signal +42 +live +app +1/1 +1 .*"),
                               MatchesRegex(".*\ninner +- +- +- +- +- +0 .*"),
                               MatchesRegex(".*\nstep +barrier +0 +live +- +1/3 +1 .*")));
  EXPECT_EQ(gpushm_signal_close(frame), GPUSHM_OK);
  EXPECT_THAT(Ctl({"stat", "frame", "-o", "json"}).out,
              AllOf(HasSubstr("\"value\": 42"), HasSubstr("\"state\": \"left\"")));
  EXPECT_EQ(gpushm_barrier_close(barrier), GPUSHM_OK);
  gpushm_close(client);
}

TEST_F(CtlTest, ErrorsHaveTheirCodesCauseAndRemedy) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const Output missing = Ctl({"stat", "weigths"});
  EXPECT_EQ(missing.code, 3);
  EXPECT_EQ(missing.out, "");
  EXPECT_THAT(missing.err, AllOf(StartsWith("gpushmctl: "), HasSubstr("no buffer \"weigths\""),
                                 HasSubstr("\nremedy: ")));
  EXPECT_EQ(Ctl({"rm", "weigths"}).code, 3);
  EXPECT_EQ(Ctl({"rm", "-f", "weigths"}).code, 0);
  EXPECT_EQ(Ctl({"create", "weights", "8Mi"}).code, 10);
  EXPECT_EQ(Ctl({"create", "Bad_Name", "8Mi"}).code, 2);
  EXPECT_EQ(Ctl({"create", "x", "8Q"}).code, 2);
  EXPECT_EQ(Ctl({"load", "/nowhere", "weights"}).code, 3);
  EXPECT_EQ(Ctl({"load", WriteFile("large", 9 << 20), "weights"}).code, 2);
  EXPECT_EQ(Ctl({"load", "x", "weights", "--chunk", "2Gi"}).code, 2);
  const Output bogus = Ctl({"bogus"});
  EXPECT_EQ(bogus.code, 2);
  EXPECT_THAT(bogus.err, HasSubstr("unknown command \"bogus\""));
  EXPECT_EQ(Ctl({}).code, 2);
  EXPECT_EQ(Ctl({"--help"}).code, 0);
  EXPECT_EQ(Ctl({"--version"}).out, Concat("gpushmctl ", kVersion, "\n"));
  EXPECT_EQ(Ctl({"wait"}).code, 2);
  EXPECT_EQ(Ctl({"wait", "weights", "--generation", "99999999999999999999"}).code, 2);
  EXPECT_EQ(
      Ctl({"wait", "weights", "--generation", "18446744073709551615", "--timeout", "50ms"}).code,
      6);
  EXPECT_EQ(Ctl({"wait", "nobody", "--timeout", "50ms"}).code, 6);
}

TEST_F(CtlTest, PoolAndCardFull) {
  std::ofstream(dir_ / "sim/faults.yaml") << "";
  StartBroker();
  const Output pool = Ctl({"create", "big", "1Gi"});
  EXPECT_EQ(pool.code, 5);
  EXPECT_THAT(pool.err, AllOf(HasSubstr("the pool has"), HasSubstr("remedy: ")));
  // CUDA_ERROR_OUT_OF_MEMORY: other programs have filled the GPU's memory.
  std::ofstream(dir_ / "sim/faults.yaml") << "results: {cuMemCreate: 2}\n";
  const Output card = Ctl({"create", "small", "2Mi"});
  EXPECT_EQ(card.code, 5) << card.err;
  const Output doctor = Ctl({"doctor"});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.out, HasSubstr("fail  create "));
}

TEST_F(CtlTest, TopPrintsOneBlockASample) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "8Mi"}).code, 0);
  const Output top = Ctl({"top", "-n", "2", "-i", "50ms"});
  EXPECT_EQ(top.code, 0);
  EXPECT_THAT(top.out, AllOf(StartsWith("gpushm  "), HasSubstr("\n\ngpushm  "),
                             HasSubstr("pool 8Mi of 64Mi (12%)"), Not(HasSubstr("\033"))));
  const Output json = Ctl({"top", "-n", "1", "-o", "json"});
  EXPECT_TRUE(IsJson(json.out));
  StopBroker();
  EXPECT_EQ(Ctl({"top", "-n", "1"}).code, 7);
}

TEST_F(CtlTest, TopOfTheNodeSaysThatNoPluginAnswers) {
  const Output top = Ctl({"top", "--node", "127.0.0.1:1", "-n", "1"});
  EXPECT_EQ(top.code, 7);
  EXPECT_THAT(top.err, HasSubstr("no server listens at 127.0.0.1:1\nremedy: "));
  EXPECT_EQ(Ctl({"top", "--node", "-n"}).code, 2) << "-n is not its address";
}

TEST_F(CtlTest, NoBroker) {
  const Output list = Ctl({"ls"});
  EXPECT_EQ(list.code, 7);
  EXPECT_THAT(list.err, HasSubstr("remedy: "));
  EXPECT_NE(Ctl({"wait", "--broker", "--timeout", "100ms"}).code, 0);
  EXPECT_EQ(Ctl({"ls", "--folder", "/nowhere"}).code, 7);
  const Output doctor = Ctl({"doctor"});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.out, AllOf(HasSubstr("fail  socket"), HasSubstr("fail  broker"),
                                HasSubstr("ok    create")));
}

TEST_F(CtlTest, Denied) {
  StartBroker("64Mi",
              "buffers.gpushm.io/frames: {size: 2Mi, writers: [other], containers: [other]}\n"
              "buffers.gpushm.io/table: {size: 2Mi, writers: [other]}\n");
  const std::string file = WriteFile("frame", 4096);
  const Output load = Ctl({"load", file, "table", "--timeout", "2s"});
  EXPECT_EQ(load.code, 4) << load.err;
  EXPECT_EQ(Ctl({"save", "frames", (dir_ / "x").string(), "--timeout", "2s"}).code, 4);
  EXPECT_EQ(Ctl({"rm", "table"}).code, 4);
  EXPECT_FALSE(fs::exists(dir_ / "x"));
}

TEST_F(CtlTest, WrongUid) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  StartBroker();
  fs::permissions(dir_ / "run/app/gpushm.sock", fs::perms::owner_read | fs::perms::owner_write);
  const Output list = Ctl({"ls"}, {.uid = kNobody});
  EXPECT_EQ(list.code, 4) << list.err;
  const Output doctor = Ctl({"doctor"}, {.uid = kNobody});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.out,
              AllOf(HasSubstr("has mode 0600, owner 0:0; this process runs as 65534:65534"),
                    HasSubstr("fail  socket")));
}

TEST_F(CtlTest, DoctorIsContentWhereAllWorks) {
  StartBroker();
  const Output doctor = Ctl({"doctor"});
  EXPECT_EQ(doctor.code, 0) << doctor.out;
  EXPECT_THAT(doctor.out, AllOf(HasSubstr("ok    broker's gpu"), HasSubstr("ok    attach"),
                                HasSubstr("ok    read-only"), HasSubstr(" 0 failed\n")));
  EXPECT_TRUE(IsJson(Ctl({"doctor", "-o", "json"}).out));
}

TEST_F(CtlTest, DoctorWithoutDriverOrDevice) {
  StartBroker();
  const Output driver = Ctl({"doctor"}, {.environment = {"GPUSHM_DRIVER=/nowhere"}});
  EXPECT_EQ(driver.code, 1);
  EXPECT_THAT(driver.out,
              AllOf(HasSubstr("fail  driver"), HasSubstr("load and save by the broker")));
  const Output device = Ctl({"doctor"}, {.environment = {"CUDA_VISIBLE_DEVICES=-1"}});
  EXPECT_EQ(device.code, 1);
  EXPECT_THAT(device.out, AllOf(HasSubstr("fail  "), HasSubstr("warn  visibility")));
}

// Goal: a hanging driver makes no command hang. Method: the simulated driver blocks for a minute;
// doctor and load must end by their own deadlines.
TEST_F(CtlTest, SickGpuHangs) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "2Mi"}).code, 0);
  const Setting sick{.environment = {"GPUSHM_SIM_FAULT={hang: {cuMemCreate: 60000}}"}};
  const int64_t start_ns = MonotonicNs();
  const Output doctor = Ctl({"doctor", "--timeout", "300ms"}, sick);
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.out, AllOf(HasSubstr("ok    driver"), HasSubstr("fail  create"),
                                HasSubstr("no answer within 300 ms")));
  const Setting dead{.environment = {"GPUSHM_SIM_FAULT={hang: {cuInit: 60000}}"}};
  EXPECT_THAT(Ctl({"doctor", "--timeout", "300ms"}, dead).out, HasSubstr("fail  driver"));
  const std::string file = WriteFile("model", 4096);
  const Output load = Ctl({"load", file, "weights", "--stall-timeout", "1s"}, dead);
  EXPECT_EQ(load.code, 6);
  EXPECT_THAT(load.err, HasSubstr("the transfer stalled"));
  EXPECT_EQ(Ctl({"ls"}, dead).code, 0) << "listing asks no driver";
  EXPECT_LT(MonotonicNs() - start_ns, int64_t{20} * 1'000'000'000);
}

// Goal: with a broker of two GPUs, create chooses one, and every view says which; doctor tries
// both.
TEST_F(CtlTest, SeveralGpus) {
  fs::create_directories(dir_ / "sim");
  std::ofstream(dir_ / "sim/cards.yaml")
      << "gpus:\n"
         "- {uuid: GPU-aaaaaaaa-0000-0000-0000-000000000001, memory: 1Gi}\n"
         "- {uuid: GPU-bbbbbbbb-0000-0000-0000-000000000002, memory: 1Gi}\n";
  StartBroker("64Mi", "gpushm.io/gpus: '2'\nbuffers.gpushm.io/weights: {size: 4Mi, gpu: each}\n");
  const Output made = Ctl({"create", "kv", "8Mi", "--gpu", "1"});
  ASSERT_EQ(made.code, 0) << made.err;
  const Output list = Ctl({"ls"});
  EXPECT_THAT(list.out, ContainsRegex("kv .* 1 GPU-bbbbbbbb"));
  EXPECT_THAT(list.out, ContainsRegex("weights-0 .* 0 GPU-aaaaaaaa"));
  EXPECT_THAT(Ctl({"stat", "kv"}).out,
              HasSubstr("gpu:         1 GPU-bbbbbbbb-0000-0000-0000-000000000002\n"));
  EXPECT_THAT(Ctl({"stat", "kv", "-o", "json"}).out, HasSubstr("\"gpu_number\": 1"));
  const Output stat = Ctl({"stat"});
  EXPECT_THAT(stat.out, ContainsRegex("  0  GPU-aaaaaaaa-.*  ok +64Mi +4Mi\n"));
  EXPECT_THAT(stat.out, ContainsRegex("  1  GPU-bbbbbbbb-.*  ok +64Mi +12Mi\n"));
  EXPECT_THAT(Ctl({"top", "-n", "1"}).out,
              HasSubstr("gpu 1 GPU-bbbbbbbb  pool 12Mi of 64Mi (19%)\n"));
  const Output unknown = Ctl({"create", "x", "2Mi", "--gpu", "2"});
  EXPECT_EQ(unknown.code, 2) << unknown.err;
  EXPECT_THAT(unknown.err, HasSubstr("2"));
  const Output doctor = Ctl({"doctor"});
  EXPECT_EQ(doctor.code, 0) << doctor.out;
  EXPECT_THAT(doctor.out, HasSubstr("GPU 0 of the pod, GPU-aaaaaaaa"));
  EXPECT_THAT(doctor.out, HasSubstr("GPU 1 of the pod, GPU-bbbbbbbb"));
  EXPECT_THAT(doctor.out, ContainsRegex("peers +GPU 0 and GPU 1 "));
  EXPECT_THAT(doctor.out, HasSubstr("read-only on GPU-bbbbbbbb-0000-0000-0000-000000000002"));
}

// Goal: two processes that are both PID 1 can share vmm memory, and doctor warns about cuipc.
TEST_F(CtlTest, EqualPids) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root for a PID namespace";
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "2Mi"}, {.own_pid_namespace = true}).code, 0);
  const std::string file = WriteFile("model", 2 << 20);
  const Output load = Ctl({"load", file, "weights"}, {.own_pid_namespace = true});
  EXPECT_EQ(load.code, 0) << load.err;
  const Output doctor = Ctl({"doctor"}, {.own_pid_namespace = true});
  EXPECT_EQ(doctor.code, 0) << doctor.out;
  EXPECT_THAT(doctor.out, HasSubstr("warn  cuipc          this process is PID 1"));
}

// Goal: real bash completes from the printed script. Method: source it, set the line, call it.
TEST_F(CtlTest, BashCompletes) {
  StartBroker();
  ASSERT_EQ(Ctl({"create", "weights", "2Mi"}).code, 0);
  ASSERT_EQ(Ctl({"create", "kv", "2Mi"}).code, 0);
  std::ofstream(dir_ / "complete") << Ctl({"completion", "bash"}).out;
  const auto complete = [&](const std::string& words) {
    const Output done =
        Run({"/usr/bin/env", "bash", "-c",
             "source " + (dir_ / "complete").string() + "; cd " + (dir_ / "run").string() +
                 "; COMP_WORDS=(" + words +
                 "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _gpushmctl; echo \"${COMPREPLY[*]}\""});
    EXPECT_EQ(done.err, "") << words;
    return done.out;
  };
  const std::string ctl = build_ + "/bin/gpushmctl ";
  EXPECT_EQ(complete(ctl + "st"), "stat\n");
  EXPECT_EQ(complete(ctl + "l"), "ls load\n");
  EXPECT_EQ(complete(ctl + "stat ''"), "kv weights\n");
  EXPECT_EQ(complete(ctl + "stat w"), "weights\n");
  EXPECT_EQ(complete(ctl + "--timeout 3s rm kv w"), "weights\n");
  EXPECT_EQ(complete(ctl + "load a"), "app\n");
  EXPECT_EQ(complete(ctl + "load app k"), "kv\n");
  EXPECT_EQ(complete(ctl + "save kv a"), "app\n");
  EXPECT_EQ(complete(ctl + "load --format r"), "raw\n");
  EXPECT_EQ(complete(ctl + "load --format = r"), "raw\n");
  EXPECT_EQ(complete(ctl + "load --format ="), "auto raw tensors\n");
  EXPECT_EQ(complete(ctl + "-o j"), "json\n");
  EXPECT_EQ(complete(ctl + "create x 1Mi --on-writer-exit d"), "drop\n");
  EXPECT_THAT(complete(ctl + "load --st"), HasSubstr("--stall-timeout"));
  EXPECT_THAT(complete(ctl + "ls --fo"), HasSubstr("--folder"));
  EXPECT_EQ(complete(ctl + "--folder o"), "other\n");
  EXPECT_EQ(complete(ctl + "completion ''"), "bash\n");
  EXPECT_EQ(complete(ctl + "create w"), "\n") << "a new name";
}

}  // namespace
}  // namespace gpushm::ctl
