#include "sidecar/injector/affinity.h"

#include <algorithm>
#include <string>
#include <utility>

#include "contract/node_labels.h"

namespace gpushm::injector {
namespace {

// The weights of a node that is known to have room and of one that says nothing. The scheduler adds
// them up and scales the largest sum to 100, so only their proportion counts.
constexpr int kHasRoomWeight = 100;
constexpr int kSaysNothingWeight = 50;

const Pointer kNodeAffinity("/spec/affinity/nodeAffinity");
const Pointer kTerms =
    kNodeAffinity / "requiredDuringSchedulingIgnoredDuringExecution" / "nodeSelectorTerms";
const Pointer kPreferred = kNodeAffinity / "preferredDuringSchedulingIgnoredDuringExecution";

Json AtLeast(const std::string& label, uint64_t least) {
  return {{"key", label}, {"operator", "Gt"}, {"values", Json::array({std::to_string(least - 1)})}};
}

// What a pod needs of the labels that the plugin states.
struct Room {
  Json enough;   // The node has room.
  Json unknown;  // The node does not say.
  bool again;    // What an earlier call wrote may be for other annotations.
};

Room RoomFor(const Pod& pod) {
  const size_t gpus = pod.spec.gpus;
  // A node with fewer GPUs than the pod has this label, but not that of so many GPUs.
  return {.enough = AtLeast(LargestFreeLabel(gpus), pod.units / gpus),
          .unknown = {{"key", LargestFreeLabel(1)}, {"operator", "DoesNotExist"}},
          .again = pod.redo && pod.Find(kSidecarName) != nullptr};
}

bool IsAboutRoom(const Json& expression) {
  return expression.is_object() && expression.contains("key") && expression["key"].is_string() &&
         expression["key"].get_ref<const std::string&>().starts_with(LargestFreeLabel(1));
}

// Whether there is anything about room in the list of expressions: from an earlier call, or the
// user's own, which stays.
bool Settled(const Room& room, const Pointer& expressions, Patch* patch) {
  const Json& list = Items(patch->document(), expressions);
  const auto found = std::ranges::find_if(list, IsAboutRoom);
  if (found == list.end()) return false;
  if (room.again && found->contains("operator") && (*found)["operator"] == "Gt") {
    patch->Set(expressions / static_cast<size_t>(found - list.begin()), room.enough);
  }
  return true;
}

}  // namespace

// Terms are alternatives, so each gets the expression; a pod without terms gets one. A term without
// expressions and fields matches no node, and would match some with an expression.
void RequireGpus(const Pod& pod, Patch* patch) {
  if (pod.settings->gpu_count_label.empty()) return;
  const Json enough = AtLeast(pod.settings->gpu_count_label, pod.spec.gpus);
  const size_t count = Items(patch->document(), kTerms).size();
  if (count == 0) return patch->Append(kTerms, {{"matchExpressions", Json::array({enough})}});
  for (size_t i = 0; i < count; ++i) {
    const auto has_items = [&](const char* list) {
      return !Items(patch->document(), kTerms / i / list).empty();
    };
    if (has_items("matchExpressions") || has_items("matchFields")) {
      patch->AppendMissing(kTerms / i / "matchExpressions", enough);
    }
  }
}

void PreferRoom(const Pod& pod, Patch* patch) {
  const Room room = RoomFor(pod);
  const size_t count = Items(patch->document(), kPreferred).size();
  bool settled = false;
  for (size_t i = 0; i < count; ++i) {
    settled |= Settled(room, kPreferred / i / "preference" / "matchExpressions", patch);
  }
  if (settled) return;
  for (const auto& [weight, expression] :
       {std::pair{kHasRoomWeight, room.enough}, std::pair{kSaysNothingWeight, room.unknown}}) {
    patch->Append(kPreferred, {{"weight", weight},
                               {"preference", {{"matchExpressions", Json::array({expression})}}}});
  }
}

}  // namespace gpushm::injector
