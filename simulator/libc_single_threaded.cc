// Static yaml-cpp reads libc's __libc_single_threaded with an addressing mode that works only for a
// variable of the same library. This variable says "there may be threads", which is always correct.
extern "C" {
extern __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
}
