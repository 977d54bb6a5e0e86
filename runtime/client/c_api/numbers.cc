// The enums of the C headers and those of the library name the same things by the same numbers, so
// that a value goes from one to the other as it is. Here is where that is checked.
#include <utility>

#include "contract/sync/frames.h"
#include "contract/sync/page.h"
#include "contract/tensors/dtype.h"
#include "contract/types.h"
#include "platform/base/status.h"
#include "platform/transfer/file_way.h"
#include "runtime/client/files/transfer.h"
#include "runtime/client/sync/rings.h"
#include "runtime/client/sync/signals.h"
#include "runtime/client/sync/waiter.h"
#include "runtime/include/gpushm/gpushm.h"
#include "runtime/include/gpushm/sync.h"
#include "runtime/include/gpushm/tensors.h"
#include "runtime/include/gpushm/wait.h"

namespace gpushm::client {
namespace {

// Whether a list of pairs, of C and of the library, is one of equal numbers.
constexpr bool Same() { return true; }
template <typename Ours, typename... More>
constexpr bool Same(auto theirs, Ours ours, More... more) {
  return std::cmp_equal(std::to_underlying(theirs), std::to_underlying(ours)) && Same(more...);
}

static_assert(Same(GPUSHM_ACCESS_READ, Access::kRead, GPUSHM_ACCESS_READ_WRITE,
                   Access::kReadWrite));
static_assert(Same(GPUSHM_TRANSPORT_VMM, Transport::kVmm, GPUSHM_TRANSPORT_CUIPC, Transport::kCuIpc,
                   GPUSHM_TRANSPORT_HOST, Transport::kHost));
static_assert(Same(GPUSHM_BUFFER_LOADING, BufferState::kLoading, GPUSHM_BUFFER_READY,
                   BufferState::kReady, GPUSHM_BUFFER_WRITER_DIED, BufferState::kWriterDied,
                   GPUSHM_BUFFER_FAILED, BufferState::kFailed));
static_assert(Same(GPUSHM_PEER_NONE, PeerWay::kNone, GPUSHM_PEER_NVLINK, PeerWay::kNvLink,
                   GPUSHM_PEER_PCIE, PeerWay::kPcie, GPUSHM_PEER_STAGED, PeerWay::kStaged));
static_assert(Same(GPUSHM_WRITER_EXIT_MARK, OnWriterExit::kMark, GPUSHM_WRITER_EXIT_KEEP,
                   OnWriterExit::kKeep, GPUSHM_WRITER_EXIT_DROP, OnWriterExit::kDrop));

static_assert(Same(GPUSHM_FILE_AUTO, FileWay::kAuto, GPUSHM_FILE_CACHED, FileWay::kCached,
                   GPUSHM_FILE_DIRECT, FileWay::kDirect, GPUSHM_FILE_STREAM, FileWay::kStream,
                   GPUSHM_FILE_GDS, FileWay::kGds, GPUSHM_FILE_AUTO_GDS, FileWay::kAutoGds,
                   GPUSHM_FILE_PAGES, FileWay::kPages));
static_assert(Same(GPUSHM_FILE_REASON_UNKNOWN, FileReason::kUnknown, GPUSHM_FILE_REASON_ASKED,
                   FileReason::kAsked, GPUSHM_FILE_REASON_SMALL, FileReason::kSmall,
                   GPUSHM_FILE_REASON_IN_CACHE, FileReason::kInCache,
                   GPUSHM_FILE_REASON_NOT_IN_CACHE, FileReason::kNotInCache,
                   GPUSHM_FILE_REASON_LARGE, FileReason::kLarge, GPUSHM_FILE_REASON_REFUSED,
                   FileReason::kRefused, GPUSHM_FILE_REASON_IN_ORDER, FileReason::kInOrder));
static_assert(Same(GPUSHM_FORMAT_AUTO, Format::kAuto, GPUSHM_FORMAT_RAW, Format::kRaw,
                   GPUSHM_FORMAT_TENSORS, Format::kTensors));

static_assert(Same(GPUSHM_SYNC_SIGNAL, sync::Kind::kSignal, GPUSHM_SYNC_BARRIER,
                   sync::Kind::kBarrier, GPUSHM_SYNC_RING, sync::Kind::kRing, GPUSHM_SYNC_QUEUE,
                   sync::Kind::kQueue));
static_assert(Same(GPUSHM_SIGNAL_WAITER, Signal::Role::kWaiter, GPUSHM_SIGNAL_WRITER,
                   Signal::Role::kWriter));
static_assert(Same(GPUSHM_SIGNAL_UNUSED, sync::CellState::kFree, GPUSHM_SIGNAL_LIVE,
                   sync::CellState::kLive, GPUSHM_SIGNAL_DIED, sync::CellState::kDied,
                   GPUSHM_SIGNAL_LEFT, sync::CellState::kLeft));
static_assert(Same(GPUSHM_RING_READER, Ring::Role::kReader, GPUSHM_RING_WRITER,
                   Ring::Role::kWriter));
static_assert(Same(GPUSHM_RING_OVERWRITE_OLDEST, sync::Policy::kOverwriteOldest,
                   GPUSHM_RING_BACK_PRESSURE, sync::Policy::kBackPressure));
static_assert(Same(GPUSHM_FRAME_READY_ALREADY, Ring::Ready::kAlready, GPUSHM_FRAME_READY_STREAM,
                   Ring::Ready::kStream, GPUSHM_FRAME_READY_HOST, Ring::Ready::kHost));
static_assert(Same(GPUSHM_EVENT_NAME, Waiter::Kind::kName, GPUSHM_EVENT_RING, Waiter::Kind::kRing,
                   GPUSHM_EVENT_SIGNAL, Waiter::Kind::kSignal));

using tensors::DType;
static_assert(Same(GPUSHM_DTYPE_BOOL, DType::kBool, GPUSHM_DTYPE_U8, DType::kU8, GPUSHM_DTYPE_I8,
                   DType::kI8, GPUSHM_DTYPE_F8_E5M2, DType::kF8E5M2, GPUSHM_DTYPE_F8_E4M3,
                   DType::kF8E4M3, GPUSHM_DTYPE_F8_E8M0, DType::kF8E8M0, GPUSHM_DTYPE_F8_E4M3FNUZ,
                   DType::kF8E4M3Fnuz, GPUSHM_DTYPE_F8_E5M2FNUZ, DType::kF8E5M2Fnuz,
                   GPUSHM_DTYPE_I16, DType::kI16, GPUSHM_DTYPE_U16, DType::kU16, GPUSHM_DTYPE_F16,
                   DType::kF16, GPUSHM_DTYPE_BF16, DType::kBF16, GPUSHM_DTYPE_I32, DType::kI32,
                   GPUSHM_DTYPE_U32, DType::kU32, GPUSHM_DTYPE_F32, DType::kF32, GPUSHM_DTYPE_C64,
                   DType::kC64, GPUSHM_DTYPE_F64, DType::kF64, GPUSHM_DTYPE_I64, DType::kI64,
                   GPUSHM_DTYPE_U64, DType::kU64, GPUSHM_DTYPE_F4, DType::kF4, GPUSHM_DTYPE_F6_E2M3,
                   DType::kF6E2M3, GPUSHM_DTYPE_F6_E3M2, DType::kF6E3M2));

static_assert(Same(GPUSHM_INVALID_ARGUMENT, Code::kInvalidArgument, GPUSHM_NOT_FOUND,
                   Code::kNotFound, GPUSHM_ALREADY_EXISTS, Code::kAlreadyExists, GPUSHM_DENIED,
                   Code::kDenied, GPUSHM_EXHAUSTED, Code::kExhausted, GPUSHM_CONTENDED,
                   Code::kContended, GPUSHM_TIMEOUT, Code::kTimeout, GPUSHM_INCOMPATIBLE,
                   Code::kIncompatible, GPUSHM_CORRUPT, Code::kCorrupt, GPUSHM_UNAVAILABLE,
                   Code::kUnavailable, GPUSHM_ORPHANED, Code::kOrphaned, GPUSHM_STALE, Code::kStale,
                   GPUSHM_PEER_DIED, Code::kPeerDied, GPUSHM_DEVICE_LOST, Code::kDeviceLost,
                   GPUSHM_BUSY, Code::kBusy, GPUSHM_UNSUPPORTED, Code::kUnsupported, GPUSHM_DRIVER,
                   Code::kDriver, GPUSHM_SYSTEM, Code::kSystem, GPUSHM_FORKED, Code::kForked,
                   GPUSHM_LOADING, Code::kLoading, GPUSHM_INTERNAL, Code::kInternal, GPUSHM_ENDED,
                   Code::kEnded));
static_assert(kMaxCode == GPUSHM_ENDED);

}  // namespace
}  // namespace gpushm::client
