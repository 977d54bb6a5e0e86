// The plugin as a process: reads the node, takes over what an earlier run left, serves the kubelet
// and the brokers, and keeps checking.
//
// Order of a start: lock the state folder (one plugin per node), load NVML, decide what to
// advertise, find the driver's files, install gpushm's own files for containers, read the specs of
// an earlier run and open their links. Only then does it register with the kubelet, so a plugin
// that cannot do its work never registers.
//
// Threads: Start and everything here runs on the loop's thread. The parts have threads of their
// own; see their headers.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/event_loop.h"
#include "platform/daemon/worker.h"
#include "plugin/allocation/allocator.h"
#include "plugin/allocation/node.h"
#include "plugin/cdi/host_files.h"
#include "plugin/cdi/spec_store.h"
#include "plugin/config/plugin_config.h"
#include "plugin/dra/front_end.h"
#include "plugin/inventory/health.h"
#include "plugin/inventory/inventory.h"
#include "plugin/inventory/room_file.h"
#include "plugin/inventory/taken.h"
#include "plugin/keeper/keeper.h"
#include "plugin/kubelet/folder_watch.h"
#include "plugin/kubelet/pod_resources.h"
#include "plugin/kubelet/registration.h"
#include "plugin/metrics/counters.h"
#include "plugin/monitoring/monitoring.h"

namespace gpushm::plugin {

struct DaemonOptions {
  config::PluginConfig config;
  std::string driver_folder;            // As for NvmlApi::Load.
  std::optional<binding::Pod> own_pod;  // The pod that this process runs in.
  // Folder of libgpushm.so.0 and gpushmctl, which containers get. Empty: they get neither.
  std::string payload_folder;
  std::string simulated_state;  // As in DriverOptions.
  std::string node_name;        // For display; may be empty.
};

// Names of lock files in the state folder.
inline constexpr char kServingLock[] = "/.plugin";
inline constexpr char kStandbyLock[] = "/.standby";
struct NodeLocks {
  UniqueFd serving;
  UniqueFd standby;  // Held until the plugin serves.
};

class Daemon {
 public:
  // Creates the folder if it does not exist. kSystem: its parent does not exist or is not writable.
  static Result<void> MakeStateFolder(const std::string& folder);
  // Whether this process finds all parts of the node that it needs to serve: driver, NVML, GPUs.
  static Result<void> CheckNode(const DaemonOptions& options);
  // kAlreadyExists: another plugin serves this node. Other errors say what an operator can do.
  // `locks`: from StandBy; if empty, they are taken here.
  static Result<std::unique_ptr<Daemon>> Start(EventLoop* loop, DaemonOptions options,
                                               NodeLocks locks = {});
  ~Daemon();

 private:
  Daemon(EventLoop* loop, DaemonOptions options);
  void HandOver();
  std::unique_ptr<inventory::RoomFile> TakeRoom();
  // The steps of a start, in order.
  Result<void> LockState();
  Result<void> ReadNode();
  Result<void> OpenFiles();
  void MakeNode(const cdi::OwnFiles& own);
  Result<void> TakeOver();
  Result<void> StartHealth();
  Result<void> StartMonitoring();
  Result<void> Serve();
  Result<void> WatchDrained();

  Result<void> OpenDeclared();
  void TellDevices();
  void OnHealth(const inventory::HealthChange& change);
  std::string Withheld() const;
  Result<void> Register();
  bool UsesDra() const { return options_.config.allocation == config::Allocation::kDra; }
  Result<void> StartDra();
  std::string DraNotReady();
  void ReconcileSoon(int64_t wait_ms);
  bool HasHealthy(binding::Resource resource);
  void CheckBelieved();

  EventLoop* loop_;
  DaemonOptions options_;
  // Declared first, because all that follows counts here until it is destroyed.
  metrics::Counters counters_;
  NodeLocks locks_;
  const NvmlApi* nvml_ = nullptr;
  inventory::Advertisement advertisement_;
  std::optional<cdi::DriverFiles> driver_;
  std::optional<cdi::SpecStore> specs_;
  std::optional<cdi::HostFiles> files_;
  std::optional<kubelet::PodResources> pods_;
  // Destroyed in the opposite order: callers before what they call.
  std::optional<allocation::Allocator> allocator_;
  std::optional<inventory::TakenGpus> taken_;
  std::optional<allocation::Node> node_;
  std::unique_ptr<keeper::Keeper> keeper_;
  // Guards registration_, dra_, room_ and monitoring_ for reports from other threads.
  std::mutex tell_mutex_;
  std::unique_ptr<kubelet::Registration> registration_;  // Of allocation: device-plugin.
  std::unique_ptr<dra::FrontEnd> dra_;                   // Of allocation: dra.
  // The same pointer, for readers that must not wait for the mutex.
  std::atomic<const kubelet::Registration*> shown_registration_ = nullptr;
  std::optional<inventory::HealthMonitor> health_;
  std::unique_ptr<monitoring::Monitoring> monitoring_;  // The destructor ends it first.
  std::optional<kubelet::FolderWatch> drained_watch_;
  std::unique_ptr<inventory::RoomFile> room_;
  uint64_t reconcile_timer_ = 0;
  bool reconciling_ = false;
  int64_t look_often_until_ms_ = 0;
  std::map<binding::Resource, int> doubts_;  // Used by the reconciler only.
  Worker reconciler_;                        // Listing pods can take seconds.
};

}  // namespace gpushm::plugin
