/* Goal: a program that was compiled with the headers of version 0.1 finds each field in its
 * place. Method: the frozen layout is compared with today's headers, as a C compiler lays them
 * out. */
#include <assert.h>
#include <stddef.h>

#include "gpushm/gpushm.h"
#include "gpushm/sync.h"
#include "runtime/client/layout_0_1.h"

#define CHECK_STRUCT(name, bytes) \
  static_assert(sizeof(name) >= (bytes), #name " is smaller than in version 0.1");
#define CHECK_FIELD(type, field, offset, bytes)                                    \
  static_assert(offsetof(type, field) == (offset), #type "." #field " has moved"); \
  static_assert(sizeof(((type*)NULL)->field) == (bytes), #type "." #field " has grown");
GPUSHM_LAYOUT_0_1(CHECK_STRUCT, CHECK_FIELD)
