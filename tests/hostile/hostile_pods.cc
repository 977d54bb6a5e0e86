#include "tests/hostile/hostile_pods.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <list>
#include <optional>
#include <random>
#include <string_view>

#include "contract/limits.h"
#include "platform/base/clock.h"
#include "platform/daemon/testing/hung_fuse.h"
#include "platform/daemon/testing/lingering_socket.h"
#include "plugin/keeper/testing/fake_broker.h"
#include "plugin/keeper/testing/statements.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::hostile {
namespace {

using broker::testing::RawClient;
using gpushm::testing::HangAt;
using gpushm::testing::HungFuse;
using gpushm::testing::LingeringSocket;
using plugin::keeper::testing::BufferOf;
using plugin::keeper::testing::ClientOf;
using plugin::keeper::testing::FakeBroker;
using plugin::keeper::testing::GenerationOf;
using plugin::keeper::testing::LeaseOf;
using plugin::keeper::testing::SayOneOfEach;
using plugin::keeper::testing::SimulatedMemory;
using Stop = std::atomic<bool>;

void Require(bool holds) {
  if (!holds) std::abort();
}

void Pause(int ms) { poll(nullptr, 0, ms); }  // sleep: the pace of an attack.

// A file whose daemon no longer answers, mounted where no other process sees it.
struct DeadFile {
  explicit DeadFile(const std::string& folder) {
    auto mounted = HungFuse::Mount(folder, HangAt::kAllOnceOpen);
    Require(mounted.has_value());
    fuse.emplace(std::move(*mounted));
    const auto opened = fuse->Open(O_RDWR);
    Require(opened.has_value());
    file = *opened;
  }
  std::optional<HungFuse> fuse;  // Its end aborts it, so that this process can end.
  int file = -1;
};

// A broker that has stated one of each, and then repeats `what` in one connection after another.
void SayAgainAndAgain(const Target& target, const Stop& stop,
                      const std::function<bool(FakeBroker*)>& what) {
  while (!stop) {
    FakeBroker broker(target.link);
    if (!broker.Greet(false) || !SayOneOfEach(&broker, SimulatedMemory(target.simulated_state))) {
      Pause(20);
      continue;
    }
    while (!stop && what(&broker)) {
    }
  }
}

// Runs `attack` in one process after another, because the plugin limits each process by what it
// sent.
void InNewProcesses(const Stop& stop, const std::function<void()>& attack) {
  while (!stop) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      attack();
      _exit(0);
    }
    Require(child > 0 && waitpid(child, nullptr, 0) == child);
  }
}

// Sends a new dead file each time, until the plugin has ended its file system.
void StatesDeadFiles(const Target& target, const Stop& stop,
                     const std::function<Result<void>(FakeBroker*, int file)>& state) {
  InNewProcesses(stop, [&] {
    const DeadFile dead(target.folder);
    SayAgainAndAgain(target, stop, [&](FakeBroker* broker) {
      if (!state(broker, dead.file)) return false;
      while (!stop && !dead.fuse->HasEnded()) Pause(20);
      _exit(0);
    });
  });
}

void StatesADeadFileAsMemory(const Target& target, const Stop& stop) {
  StatesDeadFiles(target, stop, [](FakeBroker* broker, int file) {
    (void)broker->Say(BufferOf("odd", 8));
    return broker->Say(GenerationOf("odd", 8), file);
  });
}

void StatesADeadFileAsAProcess(const Target& target, const Stop& stop) {
  StatesDeadFiles(target, stop,
                  [](FakeBroker* broker, int file) { return broker->Say(ClientOf(2), file); });
}

void StatesTheFuseDevice(const Target& target, const Stop& stop) {
  const UniqueFd device(open("/dev/fuse", O_RDWR | O_CLOEXEC));
  SayAgainAndAgain(target, stop, [&](FakeBroker* broker) {
    return broker->Say(BufferOf("odd", 8)) && broker->Say(GenerationOf("odd", 8), device.get());
  });
}

// Sends sockets whose close blocks. The last copy is queued unread in the link while the kept state
// is not read. Also closes connections behind them.
void StatesLingeringSockets(const Target& target, const Stop& stop) {
  InNewProcesses(stop, [&] {
    LingeringSocket lingering;
    const UniqueFd memory = SimulatedMemory(target.simulated_state);
    FakeBroker broker(target.link);
    if (!broker.Greet(false) || !SayOneOfEach(&broker, memory)) return;
    for (uint64_t id = 2; id < 5'000; ++id) {
      if (!broker.Say(LeaseOf(id, 1, 7))) return;
    }
    if (!broker.End()) return;
    {
      FakeBroker deaf(target.link);
      (void)deaf.Hello(true, 1);
      (void)deaf.Say(ClientOf(2), lingering.TakeWrapped().get());
    }
    for (int i = 0; i < 2'000 && !stop; ++i) {
      (void)protocol::Connect(target.link);
      if (i % 10 == 0) Pause(1);
    }
  });
}

void StatesAllThatALinkMayHave(const Target& target, const Stop& stop) {
  SayAgainAndAgain(target, stop, [&](FakeBroker* broker) {
    for (uint64_t id = 2; id <= limits::kLeases && !stop; ++id) {
      if (!broker->Say(LeaseOf(id, 1, 7))) return false;
    }
    while (!stop) Pause(20);
    return false;
  });
}

void FloodsItsLink(const Target& target, const Stop& stop) {
  const UniqueFd memory = SimulatedMemory(target.simulated_state);
  uint64_t id = 8;
  SayAgainAndAgain(target, stop, [&](FakeBroker* broker) {
    ++id;
    return broker->Say(GenerationOf("weights", id), memory.get()) &&
           broker->Say(protocol::LinkDrop{.what = 3, .reserved = 0, .id = id, .name = {}});
  });
}

void NeverReadsWhatWasKept(const Target& target, const Stop& stop) {
  SayAgainAndAgain(target, stop, [&](FakeBroker* broker) {
    for (uint64_t id = 2; id < 5'000; ++id) {
      if (!broker->Say(LeaseOf(id, 1, 7))) return false;
    }
    if (!broker->End()) return false;
    const FakeBroker asks(target.link);
    (void)const_cast<FakeBroker&>(asks).Hello(true, 1);
    while (!stop) Pause(20);
    return false;
  });
}

void SendsGarbage(const Target& target, const Stop& stop) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(600);
  while (!stop) {
    const Result<UniqueFd> socket = protocol::Connect(target.link);
    for (int i = 0; socket && i < 4; ++i) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      if (send(socket->get(), bytes.data(), random() % bytes.size(), MSG_NOSIGNAL) < 0) break;
    }
    Pause(1);
  }
}

void ConnectsAndSaysNothing(const Target& target, const Stop& stop) {
  std::list<UniqueFd> open;
  while (!stop) {
    Result<UniqueFd> socket = protocol::Connect(target.link);
    if (socket) open.push_back(std::move(*socket));
    if (open.size() > 64) open.pop_front();
    Pause(1);
  }
}

UniqueFd ConnectTo(const Target& target, int port) {
  UniqueFd made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  Require(inet_pton(AF_INET, target.plugin_address.c_str(), &address.sin_addr) == 1);
  if (connect(made.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  return made;
}

// Sends a request's body byte by byte, on eight connections to each port.
void SendsSlowRequests(const Target& target, const Stop& stop) {
  constexpr std::string_view kHead =
      "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n";
  std::array<UniqueFd, 16> sockets;
  while (!stop) {
    for (size_t i = 0; i < sockets.size(); ++i) {
      const bool sent = sockets[i] && send(sockets[i].get(), "x", 1, MSG_NOSIGNAL) == 1;
      if (sent) continue;
      sockets[i] = ConnectTo(target, i % 2 == 0 ? target.metrics_port : target.probes_port);
      if (sockets[i]) (void)send(sockets[i].get(), kHead.data(), kHead.size(), MSG_NOSIGNAL);
    }
    Pause(100);
  }
}

// Requests pages and does not read them.
void ScrapesWithoutReading(const Target& target, const Stop& stop) {
  constexpr std::string_view kRequest = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  std::list<UniqueFd> sockets;
  while (!stop) {
    sockets.push_back(ConnectTo(target, target.metrics_port));
    if (sockets.back()) {
      (void)send(sockets.back().get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL);
    }
    if (sockets.size() > 16) sockets.pop_front();
    Pause(20);
  }
}

void OffersADeadFile(const Target& target, const Stop& stop) {
  const DeadFile dead(target.folder);
  while (!stop) {
    RawClient client(target.sidecar);
    if (client.Hello()) (void)client.Offer("odd", dead.file);
    Pause(20);
  }
}

void NeverReadsItsReplies(const Target& target, const Stop& stop) {
  std::list<RawClient> clients;
  while (!stop) {
    RawClient& client = clients.emplace_back(target.sidecar);
    if (client.Hello()) {
      for (int i = 0; i < 40; ++i) {
        if (!client.Post(protocol::Kind::kBrokerInfo, protocol::BrokerInfoRequest{})) break;
      }
    }
    if (clients.size() > 200) clients.pop_front();
    Pause(5);
  }
}

}  // namespace

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      {"dead-file-as-memory", false, StatesADeadFileAsMemory},
      {"dead-file-as-process", false, StatesADeadFileAsAProcess},
      {"fuse-device", false, StatesTheFuseDevice},
      {"lingering-sockets", false, StatesLingeringSockets},
      {"full-link", false, StatesAllThatALinkMayHave},
      {"flood", false, FloodsItsLink},
      {"never-reads-link", false, NeverReadsWhatWasKept},
      {"garbage", false, SendsGarbage},
      {"says-nothing", false, ConnectsAndSaysNothing},
      {"slow-http", false, SendsSlowRequests},
      {"scrapes-unread", false, ScrapesWithoutReading},
      {"offers-dead-file", true, OffersADeadFile},
      {"unread-replies", true, NeverReadsItsReplies}};
  return kinds;
}

}  // namespace gpushm::hostile
