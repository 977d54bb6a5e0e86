// What the servers and clients of this folder share: errors as gRPC statuses, channels to the
// kubelet's sockets, and gRPC's own log.
//
// Threads: any.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "platform/base/status.h"

namespace gpushm::plugin::kubelet {

// The text appears in the pod's events: what failed, then what to do. At most kMaxErrorBytes,
// because gRPC carries it in a header, of which clients accept 8 KiB.
inline constexpr size_t kMaxErrorBytes = 2048;
grpc::Status ToGrpc(const Status& status);

// The kubelet's answer as a gpushm error; `context` says what was requested.
Status FromGrpc(const grpc::Status& status, const std::string& context);

// A separate channel to a unix socket. Otherwise gRPC shares connections between channels of the
// same name, and also the wait after a failed one, of up to two minutes.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& path, int max_receive_bytes);

// Sends gRPC's own log lines to the plugin's log as event "grpc". Call once per process, before any
// other use of gRPC.
void RouteGrpcLog();

}  // namespace gpushm::plugin::kubelet
