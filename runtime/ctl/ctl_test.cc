// The pure parts of gpushmctl: parsing of input, output, and exit codes.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>

#include "contract/claims.h"
#include "runtime/ctl/app.h"
#include "runtime/ctl/completion.h"
#include "runtime/ctl/doctor.h"
#include "runtime/ctl/exit_code.h"
#include "runtime/ctl/format.h"
#include "runtime/ctl/json.h"
#include "runtime/ctl/parse.h"
#include "runtime/ctl/probe.h"
#include "runtime/ctl/terminal.h"
#include "runtime/ctl/views.h"

namespace gpushm::ctl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000'000;

gpushm_info Info(const char* name, uint64_t size_bytes, uint32_t state = GPUSHM_BUFFER_READY) {
  gpushm_info info;
  GPUSHM_INIT(&info);
  std::strncpy(info.name, name, sizeof info.name - 1);
  info.generation = 1'763'700'000'000'000'001;
  info.size_bytes = size_bytes;
  info.mapped_bytes = size_bytes;
  info.created_unix_ns = 1'763'724'513 * kSecond;
  info.gpu_uuid[0] = 0x1b;
  info.transport = GPUSHM_TRANSPORT_VMM;
  info.state = state;
  return info;
}

gpushm_holder Holder(const char* buffer, const char* container, uint32_t access,
                     uint64_t generation) {
  gpushm_holder holder;
  GPUSHM_INIT(&holder);
  std::strncpy(holder.buffer, buffer, sizeof holder.buffer - 1);
  std::strncpy(holder.container, container, sizeof holder.container - 1);
  holder.generation = generation;
  holder.access = access;
  holder.client_id = 7;
  holder.lease_id = 9;
  holder.since_unix_ns = 1'763'724'513 * kSecond;
  return holder;
}

const Style kStyle{.color = false, .now_unix_ns = 1'763'724'600 * kSecond};

TEST(ParseBytes, TakesKubernetesQuantities) {
  EXPECT_EQ(ParseBytes("4096").value(), 4096u);
  EXPECT_EQ(ParseBytes("8Gi").value(), uint64_t{8} << 30);
  EXPECT_EQ(ParseBytes("1.5Gi").value(), uint64_t{3} << 29);
  EXPECT_EQ(ParseBytes(".5Ki").value(), 512u);
  EXPECT_EQ(ParseBytes("2.").value(), 2u);
  EXPECT_EQ(ParseBytes("1.5G").value(), 1'500'000'000u);
  EXPECT_EQ(ParseBytes("64Ti").value(), uint64_t{1} << 46);
  EXPECT_EQ(ParseBytes("0.0000000000000000001E").has_value(), false);
}

TEST(ParseBytes, SaysWhatIsWrong) {
  for (const char* bad : {"", "x", "8Q", "8gi", "8 Gi", "-1", "1.5.5", "0x10", "8GiB", "."}) {
    const auto parsed = ParseBytes(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_THAT(parsed.error().what(), HasSubstr("is not a size")) << bad;
    EXPECT_THAT(parsed.error().remedy(), HasSubstr("8Gi"));
  }
  EXPECT_THAT(ParseBytes("65Ti").error().what(), HasSubstr("64Ti"));
  EXPECT_THAT(ParseBytes("99999999999999999999999Ei").error().what(), HasSubstr("64Ti"));
  EXPECT_THAT(ParseBytes("0.3").error().what(), HasSubstr("whole number"));
  EXPECT_THAT(ParseBytes("0").error().what(), HasSubstr("zero bytes"));
}

TEST(ParseDuration, TakesUnitsAndSums) {
  EXPECT_EQ(ParseDurationMs("10s").value(), 10'000);
  EXPECT_EQ(ParseDurationMs("500ms").value(), 500);
  EXPECT_EQ(ParseDurationMs("1m30s").value(), 90'000);
  EXPECT_EQ(ParseDurationMs("1.5h").value(), 5'400'000);
  EXPECT_EQ(ParseDurationMs("3").value(), 3'000);
  EXPECT_EQ(ParseDurationMs("0").value(), 0);
  EXPECT_EQ(ParseDurationMs("0.1ms").value(), 1) << "never rounded to no wait at all";
  for (const char* bad : {"", "s", "-1s", "10 s", "1m30", "10x", "forever", "1s1"}) {
    EXPECT_FALSE(ParseDurationMs(bad)) << bad;
  }
  EXPECT_FALSE(ParseDurationMs("366d"));
}

TEST(FormatBytes, IsExactWhereItCan) {
  EXPECT_EQ(FormatBytes(0), "0");
  EXPECT_EQ(FormatBytes(512), "512");
  EXPECT_EQ(FormatBytes(uint64_t{8} << 30), "8Gi");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 29), "1536Mi");
  EXPECT_EQ(FormatBytes(90'900'000), "86.7Mi");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16.0Ei");
}

TEST(FormatAge, HasTwoUnits) {
  EXPECT_EQ(FormatAge(-5), "0s");
  EXPECT_EQ(FormatAge(850'000'000), "850ms");
  EXPECT_EQ(FormatAge(59 * kSecond), "59s");
  EXPECT_EQ(FormatAge(200 * kSecond), "3m20s");
  EXPECT_EQ(FormatAge(3600 * kSecond), "1h");
  EXPECT_EQ(FormatAge((3 * 86400 + 4 * 3600 + 7) * kSecond), "3d4h");
}

TEST(Format, TimesRatesUuids) {
  EXPECT_EQ(FormatTime(0), "");
  EXPECT_EQ(FormatTime(1'763'724'513'123'456'789), "2025-11-21T11:28:33.123456789Z");
  EXPECT_EQ(FormatRate(uint64_t{1} << 30, kSecond), "1.00 GiB/s");
  EXPECT_EQ(FormatRate(5, 0), "-");
  std::array<uint8_t, 16> uuid{};
  EXPECT_EQ(FormatUuid(uuid), "");
  uuid = {0x1b, 0x2c, 0x3d, 0x4e, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  EXPECT_EQ(FormatUuid(uuid), "GPU-1b2c3d4e-0102-0304-0506-0708090a0b0c");
  EXPECT_EQ(FormatShortUuid(uuid), "GPU-1b2c3d4e");
}

TEST(Format, NothingSteersTheTerminal) {
  EXPECT_EQ(Printable("a\033[31mb\nc\x7f"), "a?[31mb?c?");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "1m"),
            "?1m")
      << "C1 control";
  EXPECT_EQ(Printable("gr\xc3\xb6\xc3\x9f"
                      "e"),
            "gr\xc3\xb6\xc3\x9f"
            "e");
  EXPECT_EQ(ValidUtf8("a\xff\xc3"), "a\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd") << "surrogate";
}

TEST(Table, AlignsAndPaints) {
  Table table({{"NAME"}, {"SIZE", true}, {"STATE"}});
  table.Add({{"a"}, {"8Gi"}, {"ready", Color::kGreen}});
  table.Add({{"long-name"}, {"512Mi"}});
  EXPECT_EQ(table.Render(false),
            "NAME        SIZE  STATE\n"
            "a            8Gi  ready\n"
            "long-name  512Mi\n");
  EXPECT_THAT(table.Render(true), HasSubstr("\033[32mready\033[0m\n"));
}

TEST(Progress, FitsItsWidth) {
  const std::string line =
      ProgressLine("weights", uint64_t{1} << 30, uint64_t{4} << 30, kSecond, 120);
  EXPECT_EQ(line, "weights  [######------------------]   25%  1Gi of 4Gi  1.00 GiB/s  eta 3s");
  for (int width = 1; width < 120; ++width) {
    EXPECT_LE(ProgressLine("weights", 5, 10, kSecond, width).size(), static_cast<size_t>(width));
  }
  EXPECT_EQ(ProgressLine("w", 3 << 20, 0, kSecond, 80), "w  3Mi  3.00 MiB/s") << "of a stream";
  EXPECT_THAT(ProgressLine("w", 20, 10, kSecond, 80), HasSubstr("100%"));
}

TEST(Transfers, TellTheWayAndThePartOfTheLink) {
  gpushm_transfer_result result;
  GPUSHM_INIT(&result);
  result.bytes = uint64_t{8} << 30;
  result.elapsed_ns = kSecond / 2;
  EXPECT_EQ(TransferLine("loaded", "f", "w", result),
            "loaded f to w: 8Gi in 500ms, 16.0 GiB/s, auto\n")
      << "nothing more is known";
  result.file_method = GPUSHM_FILE_DIRECT;
  result.file_reason = GPUSHM_FILE_REASON_NOT_IN_CACHE;
  result.moving_ns = kSecond / 4;
  result.link_bytes_per_second = uint64_t{40} << 30;
  EXPECT_EQ(TransferLine("loaded", "f", "w", result),
            "loaded f to w: 8Gi in 500ms, 32.0 GiB/s, 0.80 of the PCIe link's 40.0 GiB/s, "
            "direct (not in the page cache)\n");
  EXPECT_THAT(TransferLine("loaded", "f", "w", result, 0, 7),
              HasSubstr("(not in the page cache), generation 7\n"));
  EXPECT_THAT(TransferJson("w", "f", result, 0, 7), HasSubstr("\"generation\": \"7\""));
  result.elapsed_ns += 2 * kSecond;
  EXPECT_EQ(TransferLine("loaded", "f", "w", result, 2 * kSecond),
            "loaded f to w: 8Gi in 500ms, 32.0 GiB/s, 0.80 of the PCIe link's 40.0 GiB/s, "
            "direct (not in the page cache), after it a wait of 2s\n");
  const std::string json = TransferJson("w", "f", result, 2 * kSecond);
  EXPECT_THAT(json, ::testing::Not(HasSubstr("generation")));
  for (const char* part :
       {"\"file_method\": \"direct\"", "\"file_reason\": \"not in the page cache\"",
        "\"moving_seconds\": 0.25", "\"elapsed_seconds\": 0.5", "\"settling_seconds\": 2.0",
        "\"link_fraction\": 0.8"}) {
    EXPECT_THAT(json, HasSubstr(part));
  }
}

TEST(Json, EscapesReplacesAndKeepsTheOrder) {
  EXPECT_EQ(JsonText({{"b", "a\"b\\c\n\t\x01"}}, -1), "{\"b\":\"a\\\"b\\\\c\\n\\t\\u0001\"}\n");
  EXPECT_EQ(JsonText("\xff"), "\"\xef\xbf\xbd\"\n");
  EXPECT_EQ(JsonText({{"b", {1, -2}}, {"a", Json::array()}}),
            "{\n  \"b\": [\n    1,\n    -2\n  ],\n  \"a\": []\n}\n");
}

// Goal: every status has an exit code of its class, and every code is documented.
TEST(ExitCode, CoversEveryStatus) {
  std::set<int> listed;
  int before = -1;
  for (const ExitCodeRow& row : ExitCodes()) {
    EXPECT_GT(static_cast<int>(row.code), before);
    before = static_cast<int>(row.code);
    listed.insert(before);
    EXPECT_THAT(ExitCodeHelp(), HasSubstr(row.meaning));
  }
  for (int code = 1; code <= kMaxCode; ++code) {
    EXPECT_TRUE(listed.contains(static_cast<int>(ExitCodeFor(static_cast<Code>(code))))) << code;
    EXPECT_NE(ExitCodeFor(static_cast<Code>(code)), ExitCode::kOk) << code;
  }
  EXPECT_EQ(static_cast<int>(ExitCodeFor(Code::kNotFound)), 3);
  EXPECT_EQ(static_cast<int>(ExitCodeFor(Code::kDenied)), 4);
  EXPECT_EQ(static_cast<int>(ExitCodeFor(Code::kExhausted)), 5);
  EXPECT_EQ(static_cast<int>(ExitCodeFor(Code::kTimeout)), 6);
  EXPECT_EQ(static_cast<int>(ExitCodeFor(Code::kUnavailable)), 7);
  EXPECT_EQ(static_cast<int>(ExitCodeFor(Code::kDeviceLost)), 8);
  EXPECT_EQ(static_cast<int>(ExitCodeFor(Code::kUnsupported)), 8);
}

TEST(Views, ListCountsHolders) {
  const gpushm_info loading = [] {
    gpushm_info info = Info("weights", 1000, GPUSHM_BUFFER_LOADING);
    info.loaded_bytes = 350;
    return info;
  }();
  const Snapshot snapshot{
      {loading},
      {Holder("weights", "a", GPUSHM_ACCESS_READ, loading.generation),
       Holder("weights", "b", GPUSHM_ACCESS_READ_WRITE, loading.generation),
       Holder("weights", "b", GPUSHM_ACCESS_READ, 3), Holder("other", "b", GPUSHM_ACCESS_READ, 3)}};
  EXPECT_THAT(ListTable(snapshot, kStyle), HasSubstr("loading 35%"));
  EXPECT_THAT(ListTable(snapshot, kStyle), HasSubstr("        3  1m27s\n"));
  EXPECT_THAT(ListJson(snapshot), HasSubstr("\"generation\": \"1763700000000000001\""));
  EXPECT_THAT(ListJson(snapshot), HasSubstr("\"old_generations\": 1"));
  EXPECT_EQ(ListNames(snapshot), "weights\n");
  EXPECT_EQ(ListJson({}), "{\n  \"buffers\": []\n}\n");
}

TEST(Views, StatShowsHoldersOfOldGenerations) {
  const gpushm_info info = Info("weights", uint64_t{1} << 30, GPUSHM_BUFFER_WRITER_DIED);
  const std::string text =
      StatText(info, {}, {Holder("weights", "model", GPUSHM_ACCESS_READ, 3)}, nullptr, kStyle);
  EXPECT_THAT(text, HasSubstr("size:        1Gi (1073741824 bytes)\n"));
  EXPECT_THAT(text, HasSubstr("state:       writer-died\n"));
  EXPECT_THAT(text, HasSubstr("creator:     declared by annotation\n"));
  EXPECT_THAT(text, HasSubstr("3 (old)"));
  EXPECT_THAT(text, Not(HasSubstr("reason")));
  EXPECT_THAT(StatJson(info, {}, {}, nullptr), Not(HasSubstr("reason")));
}

TEST(Views, StatShowsWhyThereIsNoContent) {
  const gpushm_info info = Info("weights", 100, GPUSHM_BUFFER_LOADING);
  gpushm_reason reason{};
  reason.status = GPUSHM_NOT_FOUND;
  std::strcpy(reason.text, "no file models/a.bin");
  EXPECT_THAT(StatText(info, reason, {}, nullptr, kStyle),
              HasSubstr("state:       loading 0%\nreason:      no file models/a.bin\n"));
  EXPECT_THAT(StatJson(info, reason, {}, nullptr),
              AllOf(HasSubstr("\"reason\": \"no file models/a.bin\""),
                    HasSubstr("\"reason_code\": \"NOT_FOUND\"")));
}

TEST(Views, SignalsAreAPartOfTheirOwn) {
  gpushm_info page = Info("frame", 4096);
  page.transport = GPUSHM_TRANSPORT_HOST;
  gpushm_info hidden = Info("hidden", 4096);
  hidden.transport = GPUSHM_TRANSPORT_HOST;
  gpushm_sync_info look{};
  GPUSHM_INIT(&look);
  std::strcpy(look.name, "frame");
  look.kind = GPUSHM_SYNC_SIGNAL;
  look.value = 42;
  look.state = GPUSHM_SIGNAL_LIVE;
  look.writer_lease = 7;
  look.joined = look.places = 1;
  gpushm_holder writer = Holder("frame", "decoder", GPUSHM_ACCESS_READ_WRITE, page.generation);
  writer.lease_id = 7;
  const Snapshot snapshot{{page, hidden, Info("weights", 100)}, {writer}, {look}};
  EXPECT_EQ(ListTable(snapshot, kStyle).find("NAME"), 0U);
  EXPECT_THAT(ListTable(snapshot, kStyle),
              HasSubstr("\n\n"
                        "NAME    KIND    AT  STATE  WRITER   JOINED  HOLDERS    AGE\n"
                        "frame   signal  42  live   decoder     1/1        1  1m27s\n"
                        "hidden  -        -  -      -             -        0  1m27s\n"));
  EXPECT_THAT(ListJson(snapshot), HasSubstr("\"kind\": \"signal\""));
  EXPECT_THAT(ListJson(snapshot), HasSubstr("\"writer\": \"decoder\""));
  EXPECT_THAT(StatText(page, {}, {writer}, &look, kStyle),
              HasSubstr("kind:        signal\nat:          42\nwritten:     live, by decoder\n"));
  // A successor is not the writer of the old generation.
  look.state = GPUSHM_SIGNAL_DIED;
  EXPECT_THAT(StatText(page, {}, {}, &look, kStyle), HasSubstr("written:     died\n"));
}

gpushm_gpu_info Gpu(uint8_t first_byte_of_uuid, uint32_t number, bool lost = false) {
  gpushm_gpu_info gpu;
  GPUSHM_INIT(&gpu);
  gpu.gpu_uuid[0] = first_byte_of_uuid;
  gpu.gpu = number;
  gpu.lost = lost ? 1 : 0;
  return gpu;
}

BrokerFacts WithGpus(std::vector<gpushm_gpu_info> gpus) {
  BrokerFacts broker;
  GPUSHM_INIT(&broker.info);
  broker.gpus = std::move(gpus);
  return broker;
}

TEST(Views, TopSortsCutsAndRates) {
  TopSample before{};
  TopSample sample{};
  sample.broker = WithGpus({Gpu(0xaa, 0), Gpu(0xbb, 1, /*lost=*/true)});
  sample.broker.gpus[0].pool_bytes = 100;
  sample.broker.gpus[0].used_bytes = 25;
  sample.snapshot.buffers = {Info("a", 100), Info("b", 300, GPUSHM_BUFFER_LOADING), Info("c", 200)};
  before = sample;
  sample.snapshot.buffers[1].loaded_bytes = uint64_t{1} << 20;
  const std::string text = TopText(sample, &before, kSecond, TopOrder::kSize, 2, kStyle);
  EXPECT_THAT(text, HasSubstr("gpu 0 GPU-aa000000  pool 25 of 100 (25%)\n"));
  EXPECT_THAT(text, HasSubstr("gpu 1 GPU-bb000000  pool 0 of 0 (-)  lost\n"));
  EXPECT_THAT(text, HasSubstr("1.00 MiB/s"));
  EXPECT_LT(text.find("\nb "), text.find("\nc "));
  EXPECT_THAT(text, HasSubstr("... and 1 more\n"));
  const std::string json = TopJson(sample, kStyle.now_unix_ns);
  EXPECT_EQ(json.find('\n'), json.size() - 1) << "one line";
}

TEST(Views, NamesUnknownNumbers) {
  EXPECT_EQ(StateName(7), "unknown-7");
  EXPECT_EQ(TransportName(9), "unknown-9");
}

SystemFacts GoodSystem() {
  SystemFacts facts;
  facts.kernel = "6.8.0";
  facts.pid = 77;
  facts.own_pid_namespace = false;
  facts.open_files = 1024;
  facts.locked_bytes = UINT64_MAX;
  return facts;
}

const Check& Named(const std::vector<Check>& checks, const std::string& name) {
  for (const Check& check : checks) {
    if (check.name == name) return check;
  }
  static const Check none{Level::kFail, "none", "", ""};
  ADD_FAILURE() << "no check " << name;
  return none;
}

TEST(Doctor, SystemFaults) {
  for (const Check& check : CheckSystem(GoodSystem(), 0)) {
    EXPECT_EQ(check.level, Level::kOk) << check.name << ": " << check.detail;
  }
  SystemFacts facts = GoodSystem();
  facts.pid = 1;
  EXPECT_THAT(Named(CheckSystem(facts, 2), "cuipc").detail, HasSubstr("2 buffers"));
  EXPECT_EQ(Named(CheckSystem(facts, 0), "cuipc").level, Level::kWarn);
  facts = GoodSystem();
  facts.own_pid_namespace = true;
  EXPECT_EQ(Named(CheckSystem(facts, 0), "cuipc").level, Level::kWarn);
  facts.peer_pidfd_error = ENOPROTOOPT;
  EXPECT_EQ(Named(CheckSystem(facts, 0), "death watch").level, Level::kOk);
  facts.pidfd_open_error = EPERM;
  EXPECT_EQ(Named(CheckSystem(facts, 0), "death watch").level, Level::kFail);
  facts.cuda_visible_devices = "";
  EXPECT_EQ(Named(CheckSystem(facts, 0), "visibility").level, Level::kWarn);
  facts.musl_loader = "ld-musl-x86_64.so.1";
  EXPECT_EQ(Named(CheckSystem(facts, 0), "libc").level, Level::kWarn);
  facts.glibc_loader = false;
  EXPECT_EQ(Named(CheckSystem(facts, 0), "libc").level, Level::kFail);
  facts.open_files = 20;
  EXPECT_EQ(Named(CheckSystem(facts, 0), "open files").level, Level::kWarn);
}

// Goal: each GPU of a pod of several is judged by its own state, and each pair by how its GPUs
// reach each other.
TEST(Doctor, SeveralGpus) {
  const BrokerFacts broker = WithGpus({Gpu(0xaa, 0), Gpu(0xbb, 1), Gpu(0xcc, 2, /*lost=*/true)});
  const std::string first = FormatUuid(broker.gpus[0].gpu_uuid);
  const std::string second = FormatUuid(broker.gpus[1].gpu_uuid);
  GpuFacts facts{.path = "libcuda.so.1",
                 .version = 13000,
                 .devices = {{second, "H100", 1}, {"GPU-other", "H100", 1}, {first, "H100", 1}},
                 .pairs = {{0, 1, PeerAccess::kNone}, {0, 2, PeerAccess::kNvLink}}};
  std::string text = DoctorText(CheckGpus(facts, &broker), false);
  EXPECT_THAT(text, HasSubstr("ok    broker's gpu  GPU 0 of the pod, " + first + ", is visible"));
  EXPECT_THAT(text, HasSubstr("ok    broker's gpu  GPU 1 of the pod, " + second + ", is visible"));
  EXPECT_THAT(text, HasSubstr("fail  broker's gpu  GPU 2 of the pod, "));
  EXPECT_THAT(text,
              HasSubstr("ok    peers         GPU 1 and GPU 0 access each other's buffers over "
                        "NVLink"));
  EXPECT_THAT(text, Not(HasSubstr("cannot access"))) << "the other GPU is not the pod's";
  EXPECT_THAT(ChooseDevices(facts, &broker), ElementsAre(first, second));
  facts.pairs[1] = {0, 2, PeerAccess::kNone};
  text = DoctorText(CheckGpus(facts, &broker), false);
  EXPECT_THAT(text, HasSubstr("warn  peers         GPU 1 and GPU 0 cannot access"));
}

TEST(Doctor, GpuFaults) {
  BrokerFacts broker = WithGpus({Gpu(0xaa, 0)});
  const std::string wanted = FormatUuid(broker.gpus[0].gpu_uuid);
  GpuFacts facts{.path = "libcuda.so.1", .version = 13000, .simulated = false, .devices = {}};
  EXPECT_TRUE(AnyFailed(CheckGpus(facts, nullptr))) << "no device";
  EXPECT_THAT(ChooseDevices(facts, &broker), ElementsAre());
  facts.devices = {{"GPU-other", "H100", 1}};
  EXPECT_FALSE(AnyFailed(CheckGpus(facts, nullptr)));
  EXPECT_EQ(Named(CheckGpus(facts, &broker), "broker's gpu").level, Level::kFail);
  facts.devices.push_back({wanted, "H100", 1});
  EXPECT_EQ(Named(CheckGpus(facts, &broker), "broker's gpu").level, Level::kOk);
  EXPECT_THAT(ChooseDevices(facts, &broker), ElementsAre(wanted));
  broker.info.simulated = 1;
  EXPECT_EQ(Named(CheckGpus(facts, &broker), "same driver").level, Level::kFail);
  const Result<GpuFacts> none = Fail(Code::kUnsupported, "no libcuda", "get one");
  EXPECT_THAT(CheckGpus(none, &broker).front().remedy,
              HasSubstr("get one; without the driver, ls"));
}

TEST(Doctor, CudaIpcWorksWithTheLibrary) {
  SystemFacts facts;
  facts.pid = 1;
  EXPECT_EQ(CheckSystem(facts, 0)[1].level, Level::kWarn);
  EXPECT_THAT(CheckSystem(facts, 0)[1].remedy, HasSubstr("gpushm.io/cuda-ipc"));
  facts.cuda_ipc_library = true;
  EXPECT_EQ(CheckSystem(facts, 0)[1].level, Level::kOk);
  EXPECT_THAT(CheckSystem(facts, 0)[1].detail, HasSubstr("libgpushm-cudaipc.so"));
}

TEST(Doctor, MpsIsToldWithWhatItCosts) {
  EXPECT_EQ(CheckMps(false, {})[0].level, Level::kOk);
  EXPECT_THAT(CheckMps(false, {})[0].detail, HasSubstr("2.3 ms"));
  EXPECT_THAT(CheckMps(true, {})[0].detail, HasSubstr("a fault in one process"));
  SystemFacts facts;
  facts.mps_pipe_folder = "/tmp/mps";
  EXPECT_EQ(CheckMps(true, facts)[0].level, Level::kWarn);
  EXPECT_EQ(CheckMps(false, facts)[0].level, Level::kWarn);
  EXPECT_THAT(CheckMps(false, facts)[0].detail, HasSubstr("/tmp/mps: no MPS daemon answers"));
  facts.mps_state = {.state = "starting", .daemon_restarts = 2, .clients = 3};
  EXPECT_THAT(CheckMps(false, facts)[0].detail, HasSubstr("gpushm-mps says: starting"));
  EXPECT_THAT(CheckMps(true, facts)[0].detail, HasSubstr("has 3 clients"));
  EXPECT_THAT(CheckMps(true, facts)[1].detail, HasSubstr("daemon was restarted 2 times"));
}

// Goal: doctor names the limits that hold, and those that are set and do not.
TEST(Doctor, LimitsOfMpsAreThoseInForce) {
  SystemFacts facts;
  facts.mps_memory_limit = "0=8G";
  facts.mps_compute = "50";
  const auto with = CheckMps(true, facts);
  ASSERT_EQ(with.size(), 3u);
  EXPECT_EQ(with[1].level, Level::kOk);
  EXPECT_THAT(with[1].detail, HasSubstr("0=8G for each process"));
  EXPECT_THAT(with[2].detail, HasSubstr("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE = 50"));
  facts.memory_cgroups = {"nvidia/0000:01:00.0/vidmem 1073741824"};
  const auto without = CheckMps(false, facts);
  EXPECT_THAT(without.back().detail, HasSubstr("vidmem 1073741824 bytes for all processes"));
  EXPECT_EQ(without[1].level, Level::kWarn);
  EXPECT_THAT(without[1].detail, HasSubstr("has no effect without MPS"));
}

TEST(Doctor, SocketFaults) {
  SocketFacts facts{.folder = "f", .path = "f/s"};
  EXPECT_THAT(CheckSocket(facts).detail, HasSubstr("folder does not exist: f"));
  facts.folder_exists = true;
  facts.error = ENOENT;
  EXPECT_THAT(CheckSocket(facts).remedy, HasSubstr("broker is not running"));
  facts.error = EACCES;
  EXPECT_THAT(CheckSocket(facts).detail, HasSubstr("folder that this process may not enter"));
  facts.error = 0;
  EXPECT_THAT(CheckSocket(facts).detail, HasSubstr("is not a socket"));
  facts.is_socket = true;
  facts.mode = 0140600;
  EXPECT_THAT(CheckSocket(facts).detail, HasSubstr("mode 0600"));
  facts.accessible = true;
  EXPECT_EQ(CheckSocket(facts).level, Level::kOk);
}

TEST(Doctor, TextAndJson) {
  const std::vector<Check> checks = {{Level::kOk, "a", "fine", ""},
                                     {Level::kFail, "bb", "broken", "mend it"}};
  EXPECT_EQ(
      DoctorText(checks, false),
      "ok    a   fine\nfail  bb  broken\n      remedy: mend it\n\n1 ok, 0 warnings, 1 failed\n");
  EXPECT_THAT(DoctorJson(checks), HasSubstr("\"failed\": 1"));
}

// Goal: whatever happens in a probe, its caller continues. Method: a child that answers, fails,
// crashes and hangs.
TEST(Probe, StaysInItsChild) {
  const auto good =
      Probe([] { return ProbeOutput{std::string("a\0b", 3), UniqueFd(dup(STDIN_FILENO))}; }, 5000);
  ASSERT_TRUE(good);
  EXPECT_EQ(good->text, std::string("a\0b", 3));
  EXPECT_TRUE(good->descriptor.valid());
  const auto failed =
      Probe([]() -> Result<ProbeOutput> { return Fail(Code::kExhausted, "what", "remedy"); }, 5000);
  EXPECT_EQ(failed.error().code(), Code::kExhausted);
  EXPECT_EQ(failed.error().what(), "what");
  EXPECT_EQ(failed.error().remedy(), "remedy");
  const auto crashed = Probe([]() -> Result<ProbeOutput> { _exit(3); }, 5000);
  EXPECT_EQ(crashed.error().code(), Code::kDriver);
  EXPECT_THAT(crashed.error().what(), HasSubstr("exit status 3"));
  const auto hung = Probe(
      []() -> Result<ProbeOutput> {
        for (;;) pause();
      },
      50);
  EXPECT_EQ(hung.error().code(), Code::kTimeout);
  EXPECT_THAT(hung.error().what(), HasSubstr("50 ms"));
}

TEST(CommandLine, ErrorsAreTwoLines) {
  EXPECT_EQ(ErrorText(Status(Code::kNotFound, "no\nbuffer", "look")),
            "gpushmctl: no?buffer\nremedy: look\n");
  EXPECT_EQ(ErrorText(Status(Code::kNotFound, "no buffer")), "gpushmctl: no buffer\n");
}

// Goal: the parser accepts everything that help describes and completion offers.
TEST(CommandLine, CompletionNamesEveryCommandAndOption) {
  Context context;
  const auto app = MakeApp(&context);
  const std::string script = BashCompletion(*app);
  for (const CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
    EXPECT_THAT(script, HasSubstr(command->get_name()));
    EXPECT_FALSE(command->get_description().empty()) << command->get_name();
    for (const CLI::Option* option : command->get_options()) {
      EXPECT_FALSE(option->get_description().empty()) << option->get_name();
      for (const std::string& name : option->get_lnames())
        EXPECT_THAT(script, HasSubstr("--" + name));
    }
  }
  EXPECT_THAT(script, HasSubstr("compgen -W 'auto raw tensors'"));
}

TEST(CommandLine, GlobalOptionsGoAnywhereAndCommandsAreNames) {
  Context context;
  auto app = MakeApp(&context);
  app->parse("--timeout 3s stat ls -o json --folder=/x", false);
  EXPECT_EQ(context.globals.timeout_ms, 3000);
  EXPECT_TRUE(context.globals.json);
  EXPECT_EQ(context.globals.folder, "/x");
  EXPECT_EQ(context.globals.TimeoutMs(), 3000);
  context.globals.timeout_ms = 0;
  EXPECT_EQ(context.globals.TimeoutMs(), GPUSHM_DONT_WAIT);
}

// What Main prints on stderr. The line is one that the parser refuses.
std::string Refused(std::vector<std::string> line) {
  line.insert(line.begin(), "gpushmctl");
  std::vector<char*> arguments;
  for (std::string& word : line) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Main(static_cast<int>(line.size()), arguments.data()), 2);
  return ::testing::internal::GetCapturedStderr();
}

// Runs a command that needs no broker, and returns what it prints.
std::string Printed(std::vector<std::string> line) {
  line.insert(line.begin(), "gpushmctl");
  std::vector<char*> arguments;
  for (std::string& word : line) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Main(static_cast<int>(line.size()), arguments.data()), 0);
  return ::testing::internal::GetCapturedStdout();
}

TEST(CommandLine, AClaimIsPrintedForKubectl) {
  const std::string text = Printed({"claim", "weights", "--memory", "10Gi"});
  EXPECT_THAT(text, HasSubstr("gpushm.io/claim: weights, gpushm.io/role: owner"));
  EXPECT_THAT(text, HasSubstr("kind: ResourceClaim\nmetadata: {\"name\":\"weights\"}\n"));
  EXPECT_THAT(text, HasSubstr("{\"memory\":\"10Gi\"}"));
  const auto two = nlohmann::json::parse(
      Printed({"claim", "weights", "--memory", "3Mi", "--gpus", "2", "--nvlink", "--others",
               "write", "--containers", "4", "-o", "json"}));
  EXPECT_EQ(two["metadata"]["annotations"]["gpushm.io/others"], "write");
  const auto& requests = two["spec"]["devices"]["requests"];
  ASSERT_EQ(requests.size(), 4U);
  EXPECT_EQ(requests[0]["name"], "broker-0");
  EXPECT_EQ(requests[0]["exactly"]["capacity"]["requests"]["memory"], "4Mi") << "in steps of 2Mi";
  EXPECT_EQ(requests[1]["exactly"]["capacity"]["requests"]["attach"], "4");
  EXPECT_EQ(two["spec"]["devices"]["constraints"].size(), 4U);
  EXPECT_THAT(Refused({"claim", "Weights", "--memory", "1Gi"}), HasSubstr("name of a Kubernetes"));
  EXPECT_THAT(Refused({"claim", "weights", "--memory", "1Gi", "--nvlink"}), HasSubstr("--gpus 2"));
  EXPECT_THAT(Refused({"claim", "weights"}), HasSubstr("--memory is required"));
}

// A GPU that a claim has alone is used up exactly: with a share more, no node could have it.
TEST(CommandLine, AnExclusiveClaimTakesAllOfItsGpus) {
  for (const bool mps : {false, true}) {
    std::vector<std::string> words = {"claim", "weights",     "--memory", "1Gi", "--gpus",
                                      "2",     "--exclusive", "-o",       "json"};
    if (mps) words.push_back("--mps");
    const auto claim = nlohmann::json::parse(Printed(words));
    const auto& devices = claim["spec"]["devices"];
    for (const auto& constraint : devices["constraints"]) {
      if (constraint.value("matchAttribute", "") != "gpushm.io/uuid") continue;
      uint64_t shares = 0;
      for (const auto& request : devices["requests"]) {
        if (std::ranges::count(constraint["requests"], request["name"]) == 0) continue;
        shares += std::stoull(
            request["exactly"]["capacity"]["requests"].value("share", std::string("1")));
      }
      EXPECT_EQ(shares, claims::kShares) << claim.dump(2);
    }
  }
}

TEST(CommandLine, ACommandOfCommandsNamesThem) {
  EXPECT_EQ(Refused({"gpu"}),
            "gpushmctl: \"gpushmctl gpu\" needs one more word: ls, drain or undrain\n"
            "remedy: for example: gpushmctl gpu ls; gpushmctl gpu --help describes them\n");
  EXPECT_EQ(Refused({"gpu", "dran", "0"}),
            "gpushmctl: \"gpushmctl gpu dran\": the word after \"gpushmctl gpu\" is ls, drain or "
            "undrain\n"
            "remedy: for example: gpushmctl gpu ls; gpushmctl gpu --help describes them\n");
  EXPECT_EQ(Refused({"gpu", "drain"}),
            "gpushmctl: GPU is required\n"
            "remedy: gpushmctl gpu drain --help describes the arguments\n");
  EXPECT_EQ(Refused({"dran"}),
            "gpushmctl: unknown command \"dran\"\n"
            "remedy: gpushmctl --help describes the arguments\n");
  EXPECT_THAT(Refused({}), HasSubstr("completion"));
}

}  // namespace
}  // namespace gpushm::ctl
