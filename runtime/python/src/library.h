// The functions of libgpushm that the package calls, found at run time. The package never links the
// library, because the one to use is known only in the container: gpushm/_library.py chooses it.
//
// Threads: Load and Api with the GIL held. The table never changes after a successful Load.
#pragma once

#include <string>
#include <vector>

#include <gpushm/sync.h>
#include <gpushm/tensors.h>
#include <gpushm/wait.h>

namespace gpushm::python {

// Each function that the package needs, without its prefix.
#define GPUSHM_PYTHON_FUNCTIONS(X) \
  X(attach)                        \
  X(attachment_address)            \
  X(attachment_advance)            \
  X(attachment_check)              \
  X(attachment_detach)             \
  X(attachment_digest)             \
  X(attachment_get_info)           \
  X(attachment_load)               \
  X(attachment_publish)            \
  X(attachment_save)               \
  X(attachment_set_content)        \
  X(attachment_set_description)    \
  X(attachment_set_tensors)        \
  X(attachment_size)               \
  X(barrier_check)                 \
  X(barrier_close)                 \
  X(barrier_get_info)              \
  X(barrier_open)                  \
  X(barrier_wait)                  \
  X(barrier_wait_on_stream)        \
  X(broker_get_info)               \
  X(close)                         \
  X(create)                        \
  X(delete)                        \
  X(description_close)             \
  X(description_data)              \
  X(description_generation)        \
  X(description_open)              \
  X(description_size)              \
  X(dtype_bits)                    \
  X(dtype_name)                    \
  X(file_digest)                   \
  X(last_error)                    \
  X(list)                          \
  X(list_gpus)                     \
  X(list_holders)                  \
  X(load)                          \
  X(lookup)                        \
  X(offer)                         \
  X(offer_state)                   \
  X(open)                          \
  X(replace)                       \
  X(ring_abandon_read)             \
  X(ring_abandon_write)            \
  X(ring_begin_read)               \
  X(ring_begin_read_newest)        \
  X(ring_begin_write)              \
  X(ring_close)                    \
  X(ring_end_read)                 \
  X(ring_end_write)                \
  X(ring_get_info)                 \
  X(ring_open)                     \
  X(save)                          \
  X(signal_check)                  \
  X(signal_close)                  \
  X(signal_device_address)         \
  X(signal_get_info)               \
  X(signal_open)                   \
  X(signal_record)                 \
  X(signal_set)                    \
  X(signal_wait)                   \
  X(signal_wait_on_stream)         \
  X(status_name)                   \
  X(sync_lookup)                   \
  X(tensors_close)                 \
  X(tensors_count)                 \
  X(tensors_generation)            \
  X(tensors_get)                   \
  X(tensors_measure)               \
  X(tensors_metadata_get)          \
  X(tensors_open)                  \
  X(version)                       \
  X(wait)                          \
  X(waiter_add_name)               \
  X(waiter_add_ring)               \
  X(waiter_add_signal)             \
  X(waiter_close)                  \
  X(waiter_descriptor)             \
  X(waiter_open)                   \
  X(waiter_remove)                 \
  X(waiter_wait)

struct Functions {
#define GPUSHM_PYTHON_MEMBER(name) decltype(&::gpushm_##name) name##_ = nullptr;
  GPUSHM_PYTHON_FUNCTIONS(GPUSHM_PYTHON_MEMBER)
#undef GPUSHM_PYTHON_MEMBER
};

// Opens the library `file`, a path or a name that the dynamic loader finds, and takes its
// functions. Returns why it cannot be used: the loader's text, or the functions that it lacks. An
// empty text: it is in use now.
std::string Load(const std::string& file);

// The file of the library in use, as the dynamic loader found it.
std::string LoadedFile();

// The functions. Throws ImportError before a successful Load.
const Functions& Api();

}  // namespace gpushm::python
