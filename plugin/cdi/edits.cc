#include "plugin/cdi/edits.h"

#include <algorithm>

namespace gpushm::plugin::cdi {
namespace {

template <typename Item>
void MergeByPath(std::vector<Item>* items, const std::vector<Item>& more) {
  for (const Item& item : more) {
    const auto same = std::find_if(items->begin(), items->end(), [&item](const Item& known) {
      return known.container_path == item.container_path;
    });
    if (same == items->end()) {
      items->push_back(item);
    } else {
      *same = item;
    }
  }
}

}  // namespace

void Merge(Edits* edits, const Edits& more) {
  for (const auto& [name, value] : more.env) edits->env[name] = value;
  MergeByPath(&edits->device_nodes, more.device_nodes);
  MergeByPath(&edits->mounts, more.mounts);
  edits->hooks.insert(edits->hooks.end(), more.hooks.begin(), more.hooks.end());
  for (const uint32_t gid : more.additional_gids) {
    if (std::find(edits->additional_gids.begin(), edits->additional_gids.end(), gid) ==
        edits->additional_gids.end()) {
      edits->additional_gids.push_back(gid);
    }
  }
}

}  // namespace gpushm::plugin::cdi
