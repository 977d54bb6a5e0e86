// For tests and fuzzers of link.h: a valid body of every kind, and an iteration over all of them.
#pragma once

#include <cstdint>

#include "contract/protocol/link.h"

namespace gpushm::protocol::testing {

template <typename Body>
Body ValidLink() {
  return Body{};
}
template <>
inline LinkHello ValidLink() {
  return {.min_version = 1,
          .max_version = 2,
          .want_kept = 1,
          .epoch = 5,
          .program = ToNameField("gpushm-broker 1.2.3")};
}
template <>
inline LinkWelcome ValidLink() {
  return {.version = 1,
          .other_gpus = 0,
          .device_lost = 1,
          .gpu_uuid = {1},
          .pool_bytes = 1 << 30,
          .allocation = ToNameField("m0000"),
          .clients = 1,
          .buffers = 2,
          .generations = 3,
          .leases = 4};
}
template <>
inline LinkClient ValidLink() {
  return {.client_id = 1,
          .token = {2},
          .container = ToNameField("other-pods"),
          .pod = ToNameField("servers-7d9f.x"),
          .pod_container = ToNameField("server")};
}
template <>
inline LinkBrokerPod ValidLink() {
  return {.pod = ToNameField("weights-7d9f.x")};
}
template <>
inline LinkBuffer ValidLink() {
  return {.name = ToNameField("weights"),
          .creator = ToNameField("app"),
          .declared = 0,
          .flags = kFlagWritersAll | kFlagOneWriter,
          .on_writer_exit = 2,
          .state = 2,
          .current = 7,
          .pending = 8,
          .loaded_bytes = 100};
}
template <>
inline LinkGeneration ValidLink() {
  return {.name = ToNameField("weights"),
          .generation = 7,
          .size_bytes = 100,
          .mapped_bytes = 2 << 20,
          .transport = 2,
          .pooled = 0,
          .gpu = 1,
          .offerer_pid = 1,
          .blocks = 0,
          .publisher_client = 0,
          .offerer_client = 1,
          .created_unix_ns = 1,
          .offset = 100,
          .cuipc_handle = {3}};
}
template <>
inline LinkBlock ValidLink() {
  return {.generation = 7, .mapped_bytes = 2 << 20, .index = 1, .reserved = 0};
}
template <>
inline LinkContent ValidLink() {
  return {.generation = 7, .content_bytes = 100, .digest = {{5, 6}}};
}
template <>
inline LinkDescription ValidLink() {
  return {.generation = 7, .size_bytes = 100};
}
template <>
inline LinkGpu ValidLink() {
  return {.number = 1, .lost = 1, .gpu_uuid = {2}};
}
template <>
inline LinkLease ValidLink() {
  return {.lease_id = 1,
          .client_id = 1,
          .generation = 7,
          .since_unix_ns = 1,
          .access = 2,
          .peer_way = 1};
}
template <>
inline LinkDrop ValidLink() {
  return {.what = 4, .reserved = 0, .id = 1, .name = {}};
}
template <>
inline LinkDevice ValidLink() {
  return {.lost = 1, .gpu = 0, .reason = {'X', 'I', 'D'}};
}
template <>
inline LinkCounters ValidLink() {
  return {.version = 1, .reserved = 0};
}

// Calls visit.operator()<Body>(kind) for each kind of message.
template <typename Visitor>
void ForEachLinkMessage(Visitor visit) {
  visit.template operator()<LinkHello>(LinkKind::kHello);
  visit.template operator()<LinkWelcome>(LinkKind::kWelcome);
  visit.template operator()<LinkRegistry>(LinkKind::kRegistry);
  visit.template operator()<LinkClient>(LinkKind::kClient);
  visit.template operator()<LinkBrokerPod>(LinkKind::kBrokerPod);
  visit.template operator()<LinkBuffer>(LinkKind::kBuffer);
  visit.template operator()<LinkGeneration>(LinkKind::kGeneration);
  visit.template operator()<LinkGpu>(LinkKind::kGpu);
  visit.template operator()<LinkOthers>(LinkKind::kOthers);
  visit.template operator()<LinkLease>(LinkKind::kLease);
  visit.template operator()<LinkDrop>(LinkKind::kDrop);
  visit.template operator()<LinkEnd>(LinkKind::kEnd);
  visit.template operator()<LinkDevice>(LinkKind::kDevice);
  visit.template operator()<LinkCounters>(LinkKind::kCounters);
  visit.template operator()<LinkContent>(LinkKind::kContent);
  visit.template operator()<LinkDescription>(LinkKind::kDescription);
  visit.template operator()<LinkBlock>(LinkKind::kBlock);
}

}  // namespace gpushm::protocol::testing
