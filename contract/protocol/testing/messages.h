// For tests and fuzzers: a valid body of every kind, and an iteration over all of them.
#pragma once

#include <array>
#include <cstdint>

#include "contract/protocol/messages.h"

namespace gpushm::protocol::testing {

template <typename Body>
Body Valid() {
  return Body{};
}
template <>
inline HelloRequest Valid() {
  HelloRequest body{};
  body.min_version = 1;
  body.max_version = 2;
  body.library = ToNameField("libgpushm 1.2.3");
  body.resume_client_id = 7;
  body.resume_token = {1, 2, 3};
  return body;
}
template <>
inline HelloReply Valid() {
  return {.version = 1,
          .reserved0 = 0,
          .simulated = 1,
          .client_id = 7,
          .epoch = 8,
          .gpu_uuid = {1},
          .container = ToNameField("app"),
          .token = {1, 2, 3},
          .resumed = 1,
          .leases = 2,
          .lease_sum = 11};
}
template <>
inline AttachRequest Valid() {
  return {
      .name = ToNameField("weights"), .access = 2, .peer_way = 1, .generation = 5, .gpu_uuid = {1}};
}
template <>
inline AttachReply Valid() {
  AttachReply body{};
  body.lease_id = 3;
  return body;
}
template <>
inline MakeReply Valid() {
  return {.lease_id = 3,
          .generation = 4,
          .size_bytes = 100,
          .mapped_bytes = 2 << 20,
          .gpu_uuid = {1},
          .gpu = 1,
          .reserved = 0};
}
template <>
inline DetachRequest Valid() {
  return {.lease_id = 1};
}
template <>
inline CreateRequest Valid() {
  return {.name = ToNameField("frames"),
          .size_bytes = 100,
          .flags = kFlagAttach | kFlagUnpublished,
          .on_writer_exit = 2};
}
template <>
inline ReplaceRequest Valid() {
  return {.name = ToNameField("frames"), .size_bytes = 0, .flags = kFlagAttach, .reserved = 0};
}
template <>
inline PublishRequest Valid() {
  return {.lease_id = 1};
}
template <>
inline OfferRequest Valid() {
  OfferRequest body{};
  body.name = ToNameField("offered");
  body.size_bytes = 100;
  body.mapped_bytes = 2 << 20;
  body.flags = kFlagWritersAll;
  body.transport = 2;
  body.pid = 1;
  body.offset = 100;
  body.gpu_uuid = {1};
  return body;
}
template <>
inline OfferReply Valid() {
  return {.generation = 9};
}
template <>
inline DeleteRequest Valid() {
  return {.name = ToNameField("frames")};
}
template <>
inline HoldersReply Valid() {
  HoldersReply body{};
  body.count = 1;
  body.entries[0].buffer = ToNameField("weights");
  body.entries[0].container = ToNameField("app");
  body.entries[0].access = 1;
  return body;
}
template <>
inline BrokerInfoReply Valid() {
  BrokerInfoReply body{};
  body.container = ToNameField("app");
  body.version = 1;
  return body;
}
template <>
inline GpusReply Valid() {
  GpusReply body{};
  body.count = 1;
  body.entries[0] = {.gpu_uuid = {1}, .pool_bytes = 2, .used_bytes = 1, .lost = 1, .reserved = 0};
  return body;
}
template <>
inline MakePageRequest Valid() {
  return {.name = ToNameField("ready"),
          .size_bytes = 4096,
          .flags = kFlagOneWriter,
          .reserved = 0,
          .after_generation = 3};
}
template <>
inline ContentRequest Valid() {
  return {.lease_id = 1, .loaded_bytes = 2, .complete = 1, .reserved = 0, .digest = {{5, 6}}};
}
template <>
inline ReasonRequest Valid() {
  return {.name = ToNameField("weights"),
          .code = 2,
          .failed = 0,
          .text = ToLineField("no file models/a.safetensors")};
}
template <>
inline DescribeRequest Valid() {
  return {.lease_id = 1, .size_bytes = 2};
}
template <>
inline DescriptionRequest Valid() {
  return {.name = ToNameField("weights"), .generation = 3};
}
template <>
inline DescriptionReply Valid() {
  return {.generation = 3, .size_bytes = 2};
}
template <>
inline AlarmRequest Valid() {
  return {.lease_id = 7};
}
template <>
inline AlarmReply Valid() {
  return {.number = 9};
}
template <>
inline StageBlockRequest Valid() {
  return {.mapped_bytes = 2 << 20, .index = 1, .reserved = 0};
}
template <>
inline BlockRequest Valid() {
  return {.lease_id = 7, .index = 1, .reserved = 0};
}
template <>
inline BlockReply Valid() {
  return {.mapped_bytes = 2 << 20};
}
template <>
inline PodRequest Valid() {
  return {.pod = ToNameField("servers-7d9f.x"), .container = ToNameField("server")};
}
template <>
inline CountersReply Valid() {
  return {.version = 1, .size_bytes = 4096};
}

// Calls visit.operator()<Body>(kind, reply) for each kind of message.
template <typename Visitor>
void ForEachMessage(Visitor visit) {
  visit.template operator()<HelloRequest>(Kind::kHello, false);
  visit.template operator()<HelloReply>(Kind::kHello, true);
  visit.template operator()<AttachRequest>(Kind::kAttach, false);
  visit.template operator()<AttachReply>(Kind::kAttach, true);
  visit.template operator()<DetachRequest>(Kind::kDetach, false);
  visit.template operator()<EmptyReply>(Kind::kDetach, true);
  visit.template operator()<CreateRequest>(Kind::kCreate, false);
  visit.template operator()<MakeReply>(Kind::kCreate, true);
  visit.template operator()<ReplaceRequest>(Kind::kReplace, false);
  visit.template operator()<PublishRequest>(Kind::kPublish, false);
  visit.template operator()<OfferRequest>(Kind::kOffer, false);
  visit.template operator()<OfferReply>(Kind::kOffer, true);
  visit.template operator()<DeleteRequest>(Kind::kDelete, false);
  visit.template operator()<HoldersRequest>(Kind::kHolders, false);
  visit.template operator()<HoldersReply>(Kind::kHolders, true);
  visit.template operator()<BrokerInfoRequest>(Kind::kBrokerInfo, false);
  visit.template operator()<BrokerInfoReply>(Kind::kBrokerInfo, true);
  visit.template operator()<GpusRequest>(Kind::kGpus, false);
  visit.template operator()<GpusReply>(Kind::kGpus, true);
  visit.template operator()<ContentRequest>(Kind::kContent, false);
  visit.template operator()<ReasonRequest>(Kind::kReason, false);
  visit.template operator()<AnnounceDescriptorRequest>(Kind::kAnnounceDescriptor, false);
  visit.template operator()<PodRequest>(Kind::kPod, false);
  visit.template operator()<CountersRequest>(Kind::kCounters, false);
  visit.template operator()<CountersReply>(Kind::kCounters, true);
  visit.template operator()<MakePageRequest>(Kind::kMakePage, false);
  visit.template operator()<DescribeRequest>(Kind::kDescribe, false);
  visit.template operator()<DescriptionRequest>(Kind::kDescription, false);
  visit.template operator()<DescriptionReply>(Kind::kDescription, true);
  visit.template operator()<AlarmRequest>(Kind::kAlarm, false);
  visit.template operator()<AlarmReply>(Kind::kAlarm, true);
  visit.template operator()<StageBlockRequest>(Kind::kStageBlock, false);
  visit.template operator()<BlockRequest>(Kind::kBlock, false);
  visit.template operator()<BlockReply>(Kind::kBlock, true);
  visit.template operator()<ErrorBody>(Kind::kAttach, true);
}

}  // namespace gpushm::protocol::testing
