#include "plugin/inventory/xids.h"

#include "platform/base/status.h"

namespace gpushm::plugin::inventory {
namespace {

constexpr XidEffect kNone = XidEffect::kNone;
constexpr XidEffect kAsk = XidEffect::kAsk;
constexpr XidEffect kReset = XidEffect::kReset;

constexpr XidInfo kXids[] = {
    {8, 8, kNone, "RESTART_APP", "a channel made no progress"},
    {11, 11, kNone, "RESTART_APP", "invalid commands in an application's push buffer"},
    {13, 13, kNone, "RESTART_APP", "exception in a kernel: out of bounds, illegal instruction"},
    {14, 14, kNone, "IGNORE", "injected for a test"},
    {25, 25, kNone, "RESTART_APP", "invalid commands in an application's push buffer"},
    {31, 31, kNone, "RESTART_APP", "a kernel or copy touched an address that is not mapped"},
    {32, 32, kNone, "RESTART_APP", "the DMA controller found an invalid push buffer"},
    {37, 38, kNone, "IGNORE", "firmware refused a request, or its watchdog fired"},
    {39, 41, kNone, "RESTART_APP", "copy engine exception"},
    {43, 43, kNone, "IGNORE", "an application hit a software fault and was ended"},
    {44, 44, kNone, "IGNORE", "fault during a context switch"},
    {45, 45, kNone, "WORKFLOW_XID_45",
     "an application's work was removed because it was killed or after another XID"},
    {46, 46, kReset, "RESET_GPU", "the GPU stopped processing"},
    {48, 48, kAsk, "WORKFLOW_XID_48", "uncorrectable (double bit) ECC error"},
    {54, 54, kReset, "CHECK_MECHANICALS", "auxiliary power is not connected"},
    {60, 60, kNone, "RESTART_APP", "security engine exception"},
    {62, 62, kReset, "RESET_GPU", "the power management controller halted"},
    {63, 63, kNone, "IGNORE", "a row was remapped, or will be at the next reset"},
    {64, 64, kReset, "RESET_GPU", "a row could not be remapped"},
    {66, 67, kNone, "IGNORE", "illegal access by the driver"},
    {68, 68, kNone, "RESTART_APP", "video decoder exception"},
    {69, 69, kNone, "RESTART_APP", "graphics engine class error"},
    {70, 72, kNone, "RESTART_APP", "copy engine exception"},
    {74, 74, kAsk, "WORKFLOW_NVLINK_ERR", "NVLink error, of this GPU or its peer"},
    {75, 77, kNone, "RESTART_APP", "copy engine exception"},
    {78, 78, kNone, "UPDATE_SWFW", "a virtual GPU did not start"},
    {79, 79, kReset, "RESTART_BM", "the GPU has fallen off the bus"},
    {80, 80, kNone, "RESTART_APP", "corrupted push buffer data"},
    {82, 82, kNone, "RESTART_APP", "JPEG engine exception"},
    {83, 84, kNone, "RESTART_APP", "video decoder exception"},
    {85, 85, kNone, "RESTART_APP", "copy engine exception"},
    {86, 86, kNone, "RESTART_APP", "optical flow engine exception"},
    {88, 89, kNone, "RESTART_APP", "video decoder exception"},
    {92, 92, kNone, "IGNORE", "many correctable ECC errors"},
    {93, 93, kNone, "IGNORE", "the InfoROM reached its wear limit"},
    {94, 94, kNone, "RESTART_APP", "memory error, contained in one application"},
    {95, 95, kReset, "RESET_GPU", "memory error that was not contained"},
    {96, 98, kNone, "RESTART_APP", "video decoder exception"},
    {99, 105, kNone, "RESTART_APP", "JPEG engine exception"},
    {106, 107, kNone, "IGNORE", "test message"},
    {108, 108, kNone, "IGNORE", "address translation failed at the other end of an NVLink"},
    {109, 109, kReset, "RESET_GPU", "a context switch timed out"},
    {110, 110, kReset, "RESET_GPU", "security fault"},
    {119, 119, kReset, "RESET_GPU", "the GPU's system processor (GSP) does not answer"},
    {120, 120, kReset, "RESET_GPU", "the GPU's system processor (GSP) failed"},
    {121, 121, kNone, "IGNORE", "corrected errors of the interconnect to the CPU"},
    {126, 135, kNone, "RESTART_APP", "copy engine exception"},
    {136, 136, kReset, "RESET_GPU", "an NVLink could not be trained"},
    {137, 137, kNone, "IGNORE", "illegal access to a peer over NVLink"},
    {139, 139, kNone, "RESTART_APP", "optical flow engine exception"},
    {140, 140, kReset, "RESET_GPU", "uncorrectable ECC error that could not be handled"},
    {141, 141, kNone, "IGNORE", "error of CUDA's fast path"},
    {142, 142, kNone, "CONTACT_SUPPORT", "video encoder exception"},
    {143, 143, kReset, "RESET_GPU", "the GPU could not be initialised"},
    {144, 150, kAsk, "WORKFLOW_NVLINK5_ERR", "NVLink error; many are harmless"},
    {151, 151, kReset, "RESTART_VM", "keys could not be rotated (confidential computing)"},
    {152, 153, kNone, "IGNORE", "deep learning accelerator error"},
    {154, 154, kAsk, "XID_154", "the driver's recovery action has changed"},
    {155, 155, kReset, "RESET_GPU", "software took an NVLink down"},
    {156, 156, kReset, "RESET_GPU",
     "a faulty part of the GPU was retired; takes effect at a reset"},
    {157, 157, kNone, "IGNORE", "a faulty part of the GPU could not be retired; may recur"},
    {158, 158, kReset, "RESET_GPU", "fatal timeout"},
    {159, 159, kAsk, "CHECK_UVM", "error of the interconnect to the CPU"},
    {160, 161, kNone, "IGNORE", "a memory channel was retired, or could not be"},
    {162, 165, kNone, "none given", "power smoothing changed"},
    {166, 166, kAsk, "none given", "NVLink encryption error"},
    {167, 167, kAsk, "none given", "fatal timeout on PCIe"},
    {168, 168, kAsk, "none given", "memory is missing: errors in a protected region"},
    {169, 169, kAsk, "none given", "the security controller halted"},
    {170, 170, kAsk, "none given", "NVLink interrupt under confidential computing"},
    {171, 172, kAsk, "none given", "details of an XID 48: DRAM or SRAM"},
};

constexpr XidInfo kUnlisted = {0, 0, XidEffect::kUnknown, "none given",
                               "not in NVIDIA's catalog, or unused there"};

}  // namespace

std::span<const XidInfo> Xids() { return kXids; }

const XidInfo& FindXid(uint64_t xid) {
  for (const XidInfo& info : kXids) {
    if (info.first <= xid && xid <= info.last) return info;
  }
  return kUnlisted;
}

}  // namespace gpushm::plugin::inventory
