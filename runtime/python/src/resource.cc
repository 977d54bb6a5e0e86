#include "resource.h"

#include <nanobind/nanobind.h>

#include <atomic>
#include <utility>

#include "driver.h"

namespace gpushm::python {
namespace {

std::atomic<Resource*> retired{nullptr};
std::atomic<size_t> live{0};

}  // namespace

Resource::Resource() { live.fetch_add(1, std::memory_order_relaxed); }
Resource::~Resource() { live.fetch_sub(1, std::memory_order_relaxed); }

void Retire(Resource* resource) noexcept {
  Resource* head = retired.load(std::memory_order_relaxed);
  do {
    resource->next_ = head;
    // Release: pairs with the exchange in Collect, which reads next_ and the resource.
  } while (!retired.compare_exchange_weak(head, resource, std::memory_order_release,
                                          std::memory_order_relaxed));
}

void Collect() noexcept {
  if (retired.load(std::memory_order_relaxed) == nullptr) return;
  const nanobind::gil_scoped_release released;
  const BesideCaptures beside;
  CollectReleased();
}

void CollectReleased() noexcept {
  if (retired.load(std::memory_order_relaxed) == nullptr) return;
  Resource* busy = nullptr;
  // A released resource may be the last owner of another one, such as its client: hence the loop.
  while (Resource* resource = retired.exchange(nullptr, std::memory_order_acquire)) {
    while (resource != nullptr) {
      Resource* const next = resource->next_;
      if (resource->Release()) {
        delete resource;
      } else {
        resource->next_ = std::exchange(busy, resource);
      }
      resource = next;
    }
  }
  while (busy != nullptr) Retire(std::exchange(busy, busy->next_));
}

size_t LiveResources() { return live.load(std::memory_order_relaxed); }

}  // namespace gpushm::python
