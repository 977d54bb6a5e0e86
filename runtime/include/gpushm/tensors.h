/* gpushm/tensors.h: buffers that hold tensors. gpushm_load of a safetensors file describes the
 * tensors that it brings (gpushm_format), and gpushm_attachment_set_tensors those that a program
 * writes by itself. The other functions read such a description:
 *
 *   gpushm_tensors* tensors;
 *   gpushm_tensor weight;
 *   GPUSHM_INIT(&weight);
 *   if (gpushm_tensors_open(client, "weights", NULL, &tensors) ||
 *       gpushm_tensors_find(tensors, "model.embed_tokens.weight", &weight))
 *     return fprintf(stderr, "%s\n", gpushm_last_error()->text), 1;
 *   gpushm_attach_options options;
 *   GPUSHM_INIT(&options);
 *   options.generation = gpushm_tensors_generation(tensors);
 *   gpushm_attach(client, "weights", &options, &attachment);
 *   CUdeviceptr p = gpushm_attachment_address(attachment) + weight.offset;
 *
 * No function here needs a GPU. Threads: any thread may read open tensors, which never change; no
 * other thread may use them at their close.
 */
#ifndef GPUSHM_TENSORS_H_
#define GPUSHM_TENSORS_H_

#include "gpushm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Types of elements: those of the safetensors format. Numbers are fixed; new ones may be appended.
 */
typedef enum gpushm_dtype {
  GPUSHM_DTYPE_BOOL = 1,
  GPUSHM_DTYPE_U8 = 2,
  GPUSHM_DTYPE_I8 = 3,
  GPUSHM_DTYPE_F8_E5M2 = 4,
  GPUSHM_DTYPE_F8_E4M3 = 5,
  GPUSHM_DTYPE_F8_E8M0 = 6,
  GPUSHM_DTYPE_F8_E4M3FNUZ = 7,
  GPUSHM_DTYPE_F8_E5M2FNUZ = 8,
  GPUSHM_DTYPE_I16 = 9,
  GPUSHM_DTYPE_U16 = 10,
  GPUSHM_DTYPE_F16 = 11,
  GPUSHM_DTYPE_BF16 = 12,
  GPUSHM_DTYPE_I32 = 13,
  GPUSHM_DTYPE_U32 = 14,
  GPUSHM_DTYPE_F32 = 15,
  GPUSHM_DTYPE_C64 = 16, /* Complex: two numbers of 32 bits. */
  GPUSHM_DTYPE_F64 = 17,
  GPUSHM_DTYPE_I64 = 18,
  GPUSHM_DTYPE_U64 = 19,
  GPUSHM_DTYPE_F4 = 20,      /* 4 bits: two elements share a byte. */
  GPUSHM_DTYPE_F6_E2M3 = 21, /* 6 bits: four elements share three bytes. */
  GPUSHM_DTYPE_F6_E3M2 = 22
} gpushm_dtype;

/* The name in a safetensors file: "BF16", "F8_E4M3". "?" for a number that is none of the above. */
GPUSHM_API const char* gpushm_dtype_name(uint32_t dtype);
/* Bits of one element; 0 for a number that is none of the above.
 * Experimental. */
GPUSHM_API uint32_t gpushm_dtype_bits(uint32_t dtype);

typedef struct gpushm_tensors gpushm_tensors;

/* One tensor. Pointers are valid until gpushm_tensors_close. */
typedef struct gpushm_tensor {
  size_t struct_size;
  const char* name;      /* UTF-8; it may be empty, and have control characters. */
  const uint64_t* shape; /* `rank` dimensions, the slowest first; elements are contiguous. */
  uint64_t offset; /* Bytes from the start of the buffer: a multiple of 256 after gpushm_load. */
  uint64_t size_bytes;
  uint32_t rank;  /* 0: one element. */
  uint32_t dtype; /* gpushm_dtype */
} gpushm_tensor;

/* Opens the tensors of a buffer. Waits until the buffer exists and its tensors are loaded. Options
 * and errors as for gpushm_description_open; NOT_FOUND also if the buffer has no description of
 * tensors (without a description: only with GPUSHM_DONT_WAIT, otherwise TIMEOUT), CORRUPT if the
 * description breaks a rule of its format, INCOMPATIBLE if a later version of gpushm wrote it. */
GPUSHM_API gpushm_status gpushm_tensors_open(gpushm_client* client, const char* name,
                                             const gpushm_description_options* options,
                                             gpushm_tensors** tensors);
/* The generation to which the offsets apply: attach exactly that one. */
GPUSHM_API uint64_t gpushm_tensors_generation(const gpushm_tensors* tensors);
/* Number of tensors; 0 also for NULL. */
GPUSHM_API uint64_t gpushm_tensors_count(const gpushm_tensors* tensors);
/* The tensor at `index`, in the order of the names' bytes. Set tensor->struct_size first.
 * Errors: NOT_FOUND (index is not below the count), INVALID_ARGUMENT. */
GPUSHM_API gpushm_status gpushm_tensors_get(const gpushm_tensors* tensors, uint64_t index,
                                            gpushm_tensor* tensor);
/* The tensor of that name, by binary search. Set tensor->struct_size first.
 * Errors: NOT_FOUND, INVALID_ARGUMENT. */
GPUSHM_API gpushm_status gpushm_tensors_find(const gpushm_tensors* tensors, const char* name,
                                             gpushm_tensor* tensor);
/* The value that the file's metadata has for `key` ("format": "pt"); NULL if it has none. Valid
 * until gpushm_tensors_close.
 * Experimental. */
GPUSHM_API const char* gpushm_tensors_metadata(const gpushm_tensors* tensors, const char* key);
/* All of the metadata, pair by pair, in the order of the keys' bytes. Errors: NOT_FOUND (`index` is
 * not below the number of pairs), INVALID_ARGUMENT.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_tensors_metadata_get(const gpushm_tensors* tensors, uint64_t index,
                                                     const char** key, const char** value);
/* NULL is allowed. */
GPUSHM_API void gpushm_tensors_close(gpushm_tensors* tensors);

/* Describes the tensors that this program writes into a generation: what gpushm_tensors_open then
 * reads, and gpushm_save makes a safetensors file from. It sets the generation's description
 * (gpushm_attachment_set_description), so do it before you publish.
 * - `tensors`: `tensor_count` of them, in any order, in an array whose first element has its
 *   struct_size set; the size of each element is that. Offsets are the program's choice. Choose
 *   multiples of 256: many kernels need 16, and other programs expect what gpushm_load does.
 *   `size_bytes` is 0, or the size that type and shape give.
 * - `metadata`: `metadata_count` pairs, each a key and a value: {"format", "pt", ...}. May be NULL
 * if the count is 0. Errors: INVALID_ARGUMENT (the text names the tensor and the reason; also: the
 * attachment is for reading), EXHAUSTED (docs/reference/limits.md), and those of
 * gpushm_attachment_set_description.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_attachment_set_tensors(gpushm_attachment* attachment,
                                                       const gpushm_tensor* tensors,
                                                       uint64_t tensor_count,
                                                       const char* const* metadata,
                                                       uint64_t metadata_count);

/* Bytes that a buffer needs for the tensors of a safetensors file, an index or a folder: for
 * gpushm_create or gpushm_replace before a load. Reads the files' headers. `tensor_count` may be
 * NULL. Does not wait. Errors: those of files (gpushm_load), EXHAUSTED (docs/reference/limits.md),
 * SYSTEM. */
GPUSHM_API gpushm_status gpushm_tensors_measure(const char* path, uint64_t* size_bytes,
                                                uint64_t* tensor_count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUSHM_TENSORS_H_ */
