/* An application that uses a GPU buffer by name: attaches it, prints what it sees, and prints it
 * again whenever that changes, until SIGTERM. It uses the GPU on which the buffer is. Errors end
 * it.
 *
 * usage: gpushm-demo-app [--once] [--write TEXT] [--ready SIGNAL] NAME
 *   --once           ends after the first print
 *   --write TEXT     first writes TEXT to the beginning of the buffer
 *   --ready SIGNAL   with --write: SIGNAL is at 1 once TEXT is written, for as long as this runs;
 *                    without: prints nothing before SIGNAL is at 1 */
#include <inttypes.h>

#include "app.h"

enum { kLookEveryMs = 200, kHeadBytes = 64, kChunkBytes = 1 << 20 };

/* FNV-1a of all bytes. */
static uint64_t Checksum(CUdeviceptr from, uint64_t size_bytes) {
  static unsigned char chunk[kChunkBytes];
  uint64_t hash = 0xcbf29ce484222325u;
  for (uint64_t done = 0; done < size_bytes;) {
    const size_t bytes = size_bytes - done < kChunkBytes ? size_bytes - done : kChunkBytes;
    CALL(cuMemcpyDtoH, chunk, from + done, bytes);
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ chunk[i]) * 0x100000001b3u;
    done += bytes;
  }
  return hash;
}

static void Print(const char* name, gpushm_attachment* attachment, const char* head) {
  gpushm_attachment_info info;
  GPUSHM_INIT(&info);
  Check(gpushm_attachment_get_info(attachment, &info));
  printf("%s: generation %" PRIu64 ", %" PRIu64 " bytes, checksum %016" PRIx64 ", begins \"", name,
         info.generation, info.size_bytes, Checksum(info.address, info.size_bytes));
  for (; *head >= ' ' && *head <= '~'; ++head) putchar(*head);
  puts("\"");
  fflush(stdout);
}

static void Write(gpushm_attachment* attachment, const char* text) {
  if (strlen(text) >= gpushm_attachment_size(attachment))
    Fail("the text is longer than the buffer");
  CALL(cuMemcpyHtoD, gpushm_attachment_address(attachment), text, strlen(text) + 1);
  CALL(cuCtxSynchronize); /* A copy of so few bytes may return before it has finished. */
}

static gpushm_attachment* Attach(gpushm_client* client, const char* name, const char* text) {
  static int used_gpu = -1;
  gpushm_attachment* attachment = NULL;
  gpushm_attachment_info info;
  gpushm_attach_options options;
  GPUSHM_INIT(&options);
  options.access = text != NULL ? GPUSHM_ACCESS_READ_WRITE : GPUSHM_ACCESS_READ;
  options.timeout_ms = kOpenMs;
  Check(gpushm_attach(client, name, &options, &attachment));
  GPUSHM_INIT(&info);
  Check(gpushm_attachment_get_info(attachment, &info));
  if (info.device != used_gpu) {
    used_gpu = info.device;
    MakeContext(used_gpu);
  }
  if (text != NULL) Write(attachment, text);
  return attachment;
}

static gpushm_signal* OpenSignal(gpushm_client* client, const char* name, gpushm_signal_role role) {
  gpushm_signal* signal = NULL;
  gpushm_signal_options options;
  GPUSHM_INIT(&options);
  options.role = role;
  options.timeout_ms = kOpenMs;
  Check(gpushm_signal_open(client, name, &options, &signal));
  return signal;
}

/* Waits until another process's signal is at 1; if its writer ends before, waits for the next
 * one. */
static void AwaitReady(gpushm_client* client, const char* name) {
  for (gpushm_status status = GPUSHM_ENDED; status != GPUSHM_OK && !ended;) {
    gpushm_signal* signal = OpenSignal(client, name, GPUSHM_SIGNAL_WAITER);
    do {
      status = gpushm_signal_wait(signal, 1, kLookMs);
    } while (status == GPUSHM_TIMEOUT && !ended);
    if (!IsOver(status) && !ended) Check(status);
    Check(gpushm_signal_close(signal));
  }
}

int main(int count, char** words) {
  const char* text = NULL;
  const char* name = NULL;
  const char* ready = NULL;
  int once = 0;
  for (int i = 1; i < count; ++i) {
    if (strcmp(words[i], "--once") == 0) {
      once = 1;
    } else if (strcmp(words[i], "--write") == 0 && i + 1 < count) {
      text = words[++i];
    } else if (strcmp(words[i], "--ready") == 0 && i + 1 < count) {
      ready = words[++i];
    } else {
      name = words[i];
    }
  }
  if (name == NULL || name[0] == '-') {
    Fail("usage: gpushm-demo-app [--once] [--write TEXT] [--ready SIGNAL] NAME");
  }
  EndOnSignals();

  gpushm_client* client = OpenClient();
  gpushm_signal* said = NULL;
  if (ready != NULL && text != NULL) said = OpenSignal(client, ready, GPUSHM_SIGNAL_WRITER);
  if (ready != NULL && text == NULL) AwaitReady(client, ready);
  gpushm_attachment* attachment = Attach(client, name, text);
  if (said != NULL) Check(gpushm_signal_set(said, 1));
  char seen[kHeadBytes + 1] = "";
  for (int printed = 0; !ended && !(once && printed); poll(NULL, 0, printed ? kLookEveryMs : 0)) {
    char head[kHeadBytes + 1] = "";
    if (gpushm_attachment_check(attachment) !=
        GPUSHM_OK) { /* The name refers to another generation now. */
      Check(gpushm_attachment_detach(attachment, NULL));
      attachment = Attach(client, name, NULL);
      printed = 0;
    }
    const uint64_t size_bytes = gpushm_attachment_size(attachment);
    CALL(cuMemcpyDtoH, head, gpushm_attachment_address(attachment),
         size_bytes < kHeadBytes ? size_bytes : kHeadBytes);
    if (printed && memcmp(head, seen, sizeof head) == 0) continue;
    memcpy(seen, head, sizeof head);
    Print(name, attachment, head);
    printed = 1;
  }
  gpushm_close(client);
  return 0;
}
