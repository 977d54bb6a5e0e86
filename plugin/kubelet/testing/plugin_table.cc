#include "plugin/kubelet/testing/plugin_table.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "platform/base/clock.h"

namespace gpushm::plugin::kubelet::testing {

Result<void> PluginTable::Connect(const std::string& resource, const std::string& socket) {
  auto client = std::make_shared<PluginClient>(resource, socket);
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return Fail(Code::kUnavailable, "the kubelet stops");
    auto& known = clients_[resource];
    if (options_.known_by_resource_alone) known.clear();
    known.push_back(client);
  }
  Result<void> dialled = client->Dial(options_.dial_ms);
  Result<PluginClient::PluginOptions> options =
      dialled ? client->GetOptions() : std::unexpected(dialled.error());
  if (!options) {
    Remove(resource, socket);
    return Fail(Code::kUnavailable,
                Concat("failed to get device plugin options: ", options.error().what()));
  }
  const std::lock_guard lock(mutex_);
  if (closing_) return Fail(Code::kUnavailable, "the kubelet stops");
  if (!options_.known_by_resource_alone) {
    auto& connected = connected_[resource];
    if (connected.contains(socket)) {
      // It also forgets the connected client, so nothing removes that from the list later.
      std::erase_if(clients_[resource], [&](const auto& item) { return item->socket() == socket; });
      return Fail(Code::kInternal, Concat("device plugin already connected: ", socket));
    }
    connected[socket] = {client, *options};
  }
  endpoints_[resource] = {client, *options};
  ++counts_[resource].registrations;
  if (lost_streams_ > 0) {
    --lost_streams_;
    connected_[resource].erase(socket);
    return {};
  }
  running_.push_back(client);
  threads_.emplace_back([this, client] { Run(client); });
  return {};
}

void PluginTable::Run(const std::shared_ptr<PluginClient>& client) {
  {
    const std::lock_guard lock(mutex_);
    ++counts_[client->resource()].streams;
  }
  client->Run([&](const std::map<std::string, bool>& healthy_by_id) {
    manager_->SetDevices(client->resource(), healthy_by_id);
    Changed();
  });
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(options_.notice_ms),
                      [this] { return closing_; });
    if (closing_) return;
  }
  // The kubelet looks its client up again instead of using the one whose stream ended.
  const auto known = Find(client->resource(), client->socket());
  if (known) Disconnect(known);
}

std::shared_ptr<PluginClient> PluginTable::Find(const std::string& resource,
                                                const std::string& socket) const {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(resource);
  if (found == clients_.end()) return nullptr;
  for (const auto& client : found->second) {
    if (options_.known_by_resource_alone || client->socket() == socket) return client;
  }
  return nullptr;
}

void PluginTable::Remove(const std::string& resource, const std::string& socket) {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(resource);
  if (found == clients_.end()) return;
  std::erase_if(found->second, [&](const auto& item) {
    return options_.known_by_resource_alone || item->socket() == socket;
  });
}

void PluginTable::Disconnect(const std::shared_ptr<PluginClient>& client) {
  Remove(client->resource(), client->socket());
  client->Close();
  {
    const std::lock_guard lock(mutex_);
    const auto endpoint = endpoints_.find(client->resource());
    if (endpoint == endpoints_.end()) return;
    auto& connected = connected_[client->resource()];
    if (options_.known_by_resource_alone) {
      // Regardless of the registration to which it belongs.
      if (endpoint->second.client) endpoint->second.client->MarkStopped();
    } else {
      if (!connected.contains(client->socket())) return;
      client->MarkStopped();
      connected.erase(client->socket());
    }
    if (connected.empty()) {
      manager_->MarkUnhealthy(client->resource());
    } else {
      endpoint->second = connected.begin()->second;
    }
  }
  Changed();
}

void PluginTable::Forget(const std::string& resource) {
  {
    const std::lock_guard lock(mutex_);
    endpoints_.at(resource).client->MarkStopped();
    manager_->MarkUnhealthy(resource);
  }
  Changed();
}

std::optional<PluginTable::Endpoint> PluginTable::Find(const std::string& resource) const {
  const std::lock_guard lock(mutex_);
  const auto found = endpoints_.find(resource);
  if (found == endpoints_.end()) return std::nullopt;
  return found->second;
}

void PluginTable::CloseAll() {
  std::list<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    // Also those that a newer registration has replaced: their streams can still be open.
    for (const auto& client : running_) client->Close();
    for (const auto& [resource, endpoint] : endpoints_) {
      if (endpoint.client) endpoint.client->Close();
    }
    running_.clear();
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads) thread.join();
  const std::lock_guard lock(mutex_);
  clients_.clear();
  connected_.clear();
}

void PluginTable::Restart() {
  const std::lock_guard lock(mutex_);
  closing_ = false;
  for (auto& [resource, endpoint] : endpoints_) endpoint = {};
}

void PluginTable::LoseStreams(int count) {
  const std::lock_guard lock(mutex_);
  lost_streams_ = count;
}

void PluginTable::DropStream(const std::string& resource) {
  const std::optional<Endpoint> endpoint = Find(resource);
  if (endpoint && endpoint->client) endpoint->client->Close();
}

uint64_t PluginTable::registrations(const std::string& resource) const {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(resource);
  return found == counts_.end() ? 0 : found->second.registrations;
}

uint64_t PluginTable::streams(const std::string& resource) const {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(resource);
  return found == counts_.end() ? 0 : found->second.streams;
}

void PluginTable::Changed() {
  {
    const std::lock_guard lock(mutex_);
    ++changes_;
  }
  changed_.notify_all();
}

bool PluginTable::WaitFor(const std::function<bool()>& reached, const Deadline& deadline) {
  for (;;) {
    uint64_t seen = 0;
    {
      const std::lock_guard lock(mutex_);
      seen = changes_;
    }
    if (reached()) return true;
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::nanoseconds(deadline.RemainingNs()),
                           [&] { return changes_ != seen; }))
      return false;
  }
}

}  // namespace gpushm::plugin::kubelet::testing
