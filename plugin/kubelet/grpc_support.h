// What server and clients of this folder share: our errors as gRPC's, channels to sockets of the
// kubelet, gRPC's own log.
//
// Threads: any.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "platform/base/status.h"

namespace gpushm::plugin::kubelet {

// The text is for the pod's events: what failed, then what to do. At most kMaxErrorBytes: gRPC
// carries it in a header, of which clients take 8 KiB.
inline constexpr size_t kMaxErrorBytes = 2048;
grpc::Status ToGrpc(const Status& status);

// An answer of the kubelet's, as our error; `context` says what was asked.
Status FromGrpc(const grpc::Status& status, const std::string& context);

// A channel of its own to a unix socket: gRPC otherwise shares connections, and how long it waits
// after one that failed, between channels of the same name, for up to two minutes.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& path, int max_receive_bytes);

// gRPC's own lines go to our log as event "grpc". Once per process, before anything else of gRPC.
void RouteGrpcLog();

}  // namespace gpushm::plugin::kubelet
