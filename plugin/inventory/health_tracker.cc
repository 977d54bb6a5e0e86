#include "plugin/inventory/health_tracker.h"

#include <algorithm>

#include "plugin/inventory/xids.h"

namespace gpushm::plugin::inventory {
namespace {

// The key of ECC errors among the XIDs: XID 0 does not exist.
constexpr uint64_t kEccErrors = 0;

// nvmlDeviceGpuRecoveryAction_t; headers of CUDA 12.6 and older lack it.
constexpr uint32_t kActionNone = 0;
constexpr uint32_t kActionDrainPeers = 3;
constexpr uint32_t kActionRecoverImexDomain = 5;

std::string ActionName(uint32_t action) {
  switch (action) {
    case 1:
      return "a reset of the GPU";
    case 2:
      return "a reboot of the node";
    case 4:
      return "the GPU to be drained and reset";
    case 6:
      return "a reset of the GPU's PCIe bus";
    case 7:
      return "a reboot of the system";
    default:
      return Concat("recovery action ", action, ", which this version does not know");
  }
}

bool Has(const std::vector<uint32_t>& list, uint64_t xid) {
  return std::ranges::find(list, xid) != list.end();
}

}  // namespace

bool NeedsReset(uint32_t recovery_action) {
  return recovery_action != kActionNone && recovery_action != kActionDrainPeers &&
         recovery_action != kActionRecoverImexDomain;
}

bool HealthTracker::Ignores(uint64_t xid) const {
  if (Has(rules_.fatal_xids, xid)) return false;
  return Has(rules_.ignore_xids, xid) || FindXid(xid).effect == XidEffect::kNone;
}

HealthTracker::HealthTracker(HealthRules rules, const std::vector<Device>& devices)
    : rules_(std::move(rules)) {
  for (const Device& device : devices) {
    State state;
    state.uuid = device.uuid;
    state.gpu = device.parent_uuid.empty() ? device.uuid : device.parent_uuid;
    state.gpu_instance = device.gpu_instance;
    state.compute_instance = device.compute_instance;
    states_.push_back(std::move(state));
  }
}

void HealthTracker::Count(const std::string& gpu, uint64_t xid, int64_t now_ms) {
  size_t kinds = 0;
  for (XidCount& count : counts_) {
    if (count.gpu != gpu) continue;
    ++kinds;
    if (count.xid != xid) continue;
    ++count.count;
    count.last_ms = now_ms;
    return;
  }
  if (kinds < kXidKinds) counts_.push_back({gpu, xid, 1, now_ms});
}

void HealthTracker::Raise(State& state, uint64_t xid, bool unknown, int64_t now_ms) {
  const auto [at, first] = state.troubles.try_emplace(xid);
  Trouble& trouble = at->second;
  if (now_ms - trouble.last_ms > kForgetMs) {
    trouble.returns = 0;
  } else if (!first && !trouble.active) {
    trouble.returns = std::min(trouble.returns + 1, kDoublings);
  }
  trouble.active = true;
  trouble.reset_seen = false;
  trouble.unknown = unknown;
  trouble.last_ms = now_ms;
  state.good = 0;
}

std::vector<HealthChange> HealthTracker::OnXid(const std::string& gpu, uint64_t xid,
                                               uint32_t gpu_instance, uint32_t compute_instance,
                                               int64_t now_ms) {
  std::vector<HealthChange> changes;
  Count(gpu, xid, now_ms);
  if (Ignores(xid)) return changes;
  const XidEffect effect = Has(rules_.fatal_xids, xid) ? XidEffect::kReset : FindXid(xid).effect;
  const auto other = [](uint32_t named, uint32_t own) {
    return named != kNoInstance && own != kNoInstance && named != own;
  };
  for (State& state : states_) {
    if (state.gpu != gpu || other(gpu_instance, state.gpu_instance) ||
        other(compute_instance, state.compute_instance)) {
      continue;
    }
    if (effect == XidEffect::kAsk && state.recovery_action) continue;  // The next check decides.
    Raise(state, xid, effect == XidEffect::kUnknown, now_ms);
    Settle(state, changes);
  }
  return changes;
}

int64_t HealthTracker::QuietMs(const State& state, const Trouble& trouble) const {
  int64_t quiet_ms = rules_.quiet_ms;
  if (state.recovery_action) quiet_ms = std::min(quiet_ms, kSettleMs);
  if (trouble.unknown) quiet_ms = std::min(quiet_ms, kUnknownQuietMs);
  return quiet_ms << trouble.returns;
}

void HealthTracker::TakeGoodProbe(State& state, const Probe& probe, int64_t now_ms) const {
  const bool wanted_reset = state.recovery_action && NeedsReset(*state.recovery_action);
  const bool wants_reset = probe.recovery_action && NeedsReset(*probe.recovery_action);
  const bool fewer = probe.ecc_errors && state.ecc_errors && *probe.ecc_errors < *state.ecc_errors;
  const bool more = probe.ecc_errors && state.ecc_errors && *probe.ecc_errors > *state.ecc_errors;
  if (state.was_lost || fewer || (wanted_reset && probe.recovery_action && !wants_reset)) {
    for (auto& [xid, trouble] : state.troubles) trouble.reset_seen = true;
  }
  state.failed = 0;
  state.was_lost = false;
  state.recovery_action = probe.recovery_action;
  if (probe.ecc_errors) state.ecc_errors = probe.ecc_errors;
  state.remap_failed = probe.remap_failed;
  state.good = wants_reset || probe.remap_failed ? 0 : state.good + 1;
  // A driver with recovery actions has contained any error that it does not report.
  if (more && !probe.recovery_action) Raise(state, kEccErrors, false, now_ms);
  if (state.good < rules_.good_probes) return;
  state.lost.clear();
  state.nvml_gone.clear();
  for (auto& [xid, trouble] : state.troubles) {
    if (trouble.reset_seen || now_ms - trouble.last_ms >= QuietMs(state, trouble)) {
      trouble.active = false;
    }
  }
  std::erase_if(state.troubles, [now_ms](const auto& trouble) {
    return !trouble.second.active && now_ms - trouble.second.last_ms > kForgetMs;
  });
}

std::vector<HealthChange> HealthTracker::OnProbe(const std::string& uuid, const Probe& probe,
                                                 int64_t now_ms) {
  std::vector<HealthChange> changes;
  const auto found = std::ranges::find(states_, uuid, &State::uuid);
  if (found == states_.end()) return changes;
  State& state = *found;
  if (probe.answer == Probe::Answer::kGood) {
    TakeGoodProbe(state, probe, now_ms);
  } else {
    const bool lost = probe.answer == Probe::Answer::kLost;
    state.good = 0;
    ++state.failed;
    state.was_lost = state.was_lost || lost;
    if (lost || state.failed >= kFailedProbes) state.lost = probe.error;
  }
  Settle(state, changes);
  return changes;
}

std::vector<HealthChange> HealthTracker::OnNvmlGone(const std::string& reason,
                                                    bool driver_unloaded) {
  std::vector<HealthChange> changes;
  for (State& state : states_) {
    state.good = 0;
    state.nvml_gone = reason;
    state.was_lost = state.was_lost || driver_unloaded;
    Settle(state, changes);
  }
  return changes;
}

std::string HealthTracker::Reason(const State& state) const {
  if (!state.nvml_gone.empty()) return Concat("NVML fails: ", state.nvml_gone);
  if (!state.lost.empty()) return Concat("the GPU does not answer: ", state.lost);
  if (state.recovery_action && NeedsReset(*state.recovery_action)) {
    return Concat("the driver requests ", ActionName(*state.recovery_action));
  }
  if (state.remap_failed) return "a row of the GPU's memory could not be remapped";
  for (const auto& [xid, trouble] : state.troubles) {
    if (!trouble.active) continue;
    if (xid == kEccErrors) return "uncorrectable ECC errors";
    return Concat("XID ", xid, ": ", FindXid(xid).meaning);
  }
  return {};
}

void HealthTracker::Settle(State& state, std::vector<HealthChange>& changes) const {
  const std::string reason = Reason(state);
  const bool healthy = reason.empty() && (state.healthy || state.good >= rules_.good_probes);
  if (healthy == state.healthy) return;
  state.healthy = healthy;
  changes.push_back({state.uuid, healthy, reason});
}

std::vector<DeviceHealth> HealthTracker::Look() const {
  std::vector<DeviceHealth> all;
  for (const State& state : states_) {
    std::string reason = Reason(state);
    if (!state.healthy && reason.empty()) reason = "answers again, but not yet for long enough";
    if (state.healthy) reason.clear();
    all.push_back({state.uuid, state.healthy, std::move(reason)});
  }
  return all;
}

std::vector<XidCount> HealthTracker::xids() const { return counts_; }

bool HealthTracker::AllHealthy() const { return std::ranges::all_of(states_, &State::healthy); }

bool HealthTracker::AnyLost() const { return std::ranges::any_of(states_, &State::was_lost); }

bool HealthTracker::AnyInDoubt() const {
  return std::ranges::any_of(
      states_, [](const State& state) { return state.failed > 0 && state.lost.empty(); });
}

}  // namespace gpushm::plugin::inventory
