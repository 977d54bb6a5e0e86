// A kernel that keeps its blocks busy for a time, as PTX, which the driver compiles for any GPU.
#pragma once

namespace gpushm::bench {

// A module with `spin(uint64_t duration_ns)`.
inline constexpr char kSpinModule[] = R"ptx(
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 duration_ns) {
  .reg .b64 %rd<5>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [duration_ns];
  mov.u64 %rd2, %globaltimer;
again:
  mov.u64 %rd3, %globaltimer;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p1, %rd4, %rd1;
  @%p1 bra again;
  ret;
}
)ptx";

}  // namespace gpushm::bench
