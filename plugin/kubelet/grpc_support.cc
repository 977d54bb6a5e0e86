#include "plugin/kubelet/grpc_support.h"

#include <grpc/support/log.h>
#if __has_include(<grpcpp/version_info.h>)
#include <grpcpp/version_info.h>
#endif

#include <algorithm>
#include <cctype>

#include "platform/daemon/log.h"

namespace gpushm::plugin::kubelet {
namespace {

grpc::StatusCode CodeOf(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case Code::kNotFound:
      return grpc::StatusCode::NOT_FOUND;
    case Code::kAlreadyExists:
      return grpc::StatusCode::ALREADY_EXISTS;
    case Code::kDenied:
      return grpc::StatusCode::PERMISSION_DENIED;
    case Code::kExhausted:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case Code::kContended:
      return grpc::StatusCode::ABORTED;
    case Code::kTimeout:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case Code::kCorrupt:
      return grpc::StatusCode::DATA_LOSS;
    case Code::kUnavailable:
    case Code::kPeerDied:
    case Code::kDeviceLost:
    case Code::kLoading:
      return grpc::StatusCode::UNAVAILABLE;
    case Code::kIncompatible:
    case Code::kOrphaned:
    case Code::kStale:
    case Code::kEnded:
    case Code::kBusy:
    case Code::kUnsupported:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case Code::kDriver:
    case Code::kSystem:
    case Code::kForked:
    case Code::kInternal:
      return grpc::StatusCode::INTERNAL;
  }
  return grpc::StatusCode::UNKNOWN;
}

Code CodeOf(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::INVALID_ARGUMENT:
      return Code::kInvalidArgument;
    case grpc::StatusCode::NOT_FOUND:
      return Code::kNotFound;
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      return Code::kDenied;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Code::kExhausted;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Code::kTimeout;
    case grpc::StatusCode::UNIMPLEMENTED:
      return Code::kUnsupported;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      return Code::kUnavailable;
    default:
      return Code::kInternal;
  }
}

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  std::string text = status.what();
  if (!status.remedy().empty()) text += Concat(": ", status.remedy());
  if (text.size() > kMaxErrorBytes) {
    text.resize(kMaxErrorBytes - 3);
    text += "...";
  }
  return {CodeOf(status.code()), text};
}

Status FromGrpc(const grpc::Status& status, const std::string& context) {
  return Status(CodeOf(status.error_code()), Concat(context, ": ", status.error_message()));
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& path, int max_receive_bytes) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // Despite its name, this is the longest time that one attempt to connect may take (gRPC's
  // "minimum connect timeout"): a server on a busy node answers late. The two others are the pauses
  // between attempts.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  args.SetMaxReceiveMessageSize(max_receive_bytes);
  // Go's servers refuse an authority that contains the path's slashes.
  args.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  return grpc::CreateCustomChannel(Concat("unix:", path), grpc::InsecureChannelCredentials(), args);
}

void RouteGrpcLog() {
// Later versions log through Abseil. The oldest ones have no version macros.
#if !defined(GRPC_CPP_VERSION_MINOR) || GRPC_CPP_VERSION_MINOR < 66
  gpr_set_log_function([](gpr_log_func_args* line) {
    const LogLevel level = line->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kWarning
                           : line->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                     : LogLevel::kDebug;
    std::string text = line->message;
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0)
      text.pop_back();
    Log(level, "grpc", {{"text", text}});
  });
#endif
}

}  // namespace gpushm::plugin::kubelet
