// The part of IREE's C API (3.9.0) that pyvlm uses, under the upstream names. The packages that
// ship the runtime library ship no headers, so these are our own declarations; with
// PYVLM_IREE_INSTALLED the same names come from the headers of an IREE installation instead.
// tests/core/test_capi_layout.py compares both, layouts and signatures, when headers are at hand.
//
// No function is called through these declarations: symbols.h makes a table of pointers of them.
#pragma once

#if defined(PYVLM_IREE_INSTALLED)

#include "csrc/iree/capi_installed.h"

#else

#include <cstddef>
#include <cstdint>

extern "C" {

// --- base -----------------------------------------------------------------------------------

typedef size_t iree_host_size_t;
typedef uint64_t iree_device_size_t;
typedef int64_t iree_time_t;
typedef int64_t iree_duration_t;

// Null is success; the low 5 bits hold the code, the rest an optional payload that must be freed.
typedef struct iree_status_handle_t* iree_status_t;

typedef enum iree_status_code_e {
  IREE_STATUS_OK = 0,
  IREE_STATUS_CANCELLED = 1,
  IREE_STATUS_UNKNOWN = 2,
  IREE_STATUS_INVALID_ARGUMENT = 3,
  IREE_STATUS_DEADLINE_EXCEEDED = 4,
  IREE_STATUS_NOT_FOUND = 5,
  IREE_STATUS_ALREADY_EXISTS = 6,
  IREE_STATUS_PERMISSION_DENIED = 7,
  IREE_STATUS_RESOURCE_EXHAUSTED = 8,
  IREE_STATUS_FAILED_PRECONDITION = 9,
  IREE_STATUS_ABORTED = 10,
  IREE_STATUS_OUT_OF_RANGE = 11,
  IREE_STATUS_UNIMPLEMENTED = 12,
  IREE_STATUS_INTERNAL = 13,
  IREE_STATUS_UNAVAILABLE = 14,
  IREE_STATUS_DATA_LOSS = 15,
  IREE_STATUS_UNAUTHENTICATED = 16,
  IREE_STATUS_DEFERRED = 17,
  IREE_STATUS_INCOMPATIBLE = 18,
  IREE_STATUS_CODE_MASK = 0x1Fu,
} iree_status_code_t;

typedef struct iree_string_view_t {
  const char* data;
  iree_host_size_t size;
} iree_string_view_t;

typedef struct iree_string_pair_t {
  iree_string_view_t key;
  iree_string_view_t value;
} iree_string_pair_t;

typedef struct iree_byte_span_t {
  uint8_t* data;
  iree_host_size_t data_length;
} iree_byte_span_t;

typedef struct iree_const_byte_span_t {
  const uint8_t* data;
  iree_host_size_t data_length;
} iree_const_byte_span_t;

typedef enum iree_timeout_type_e {
  IREE_TIMEOUT_ABSOLUTE = 0,
  IREE_TIMEOUT_RELATIVE = 1,
} iree_timeout_type_t;

typedef struct iree_timeout_t {
  iree_timeout_type_t type;
  iree_time_t nanos;
} iree_timeout_t;

typedef enum iree_allocator_command_e {
  IREE_ALLOCATOR_COMMAND_MALLOC = 0,
  IREE_ALLOCATOR_COMMAND_CALLOC = 1,
  IREE_ALLOCATOR_COMMAND_REALLOC = 2,
  IREE_ALLOCATOR_COMMAND_FREE = 3,
} iree_allocator_command_t;

typedef struct iree_allocator_alloc_params_t {
  iree_host_size_t byte_length;
} iree_allocator_alloc_params_t;

typedef iree_status_t (*iree_allocator_ctl_fn_t)(void* self, iree_allocator_command_t command,
                                                 const void* params, void** inout_ptr);

typedef struct iree_allocator_t {
  void* self;
  iree_allocator_ctl_fn_t ctl;
} iree_allocator_t;

iree_status_t iree_allocator_libc_ctl(void* self, iree_allocator_command_t command,
                                      const void* params, void** inout_ptr);

iree_status_t iree_status_allocate_f(iree_status_code_t code, const char* file, uint32_t line,
                                     const char* format, ...);
void iree_status_free(iree_status_t status);
bool iree_status_to_string(iree_status_t status, const iree_allocator_t* allocator,
                           char** out_buffer, iree_host_size_t* out_buffer_length);

// --- vm -------------------------------------------------------------------------------------

typedef struct iree_vm_instance_t iree_vm_instance_t;
typedef struct iree_vm_module_t iree_vm_module_t;
typedef struct iree_vm_context_t iree_vm_context_t;
typedef struct iree_vm_list_t iree_vm_list_t;
typedef struct iree_vm_invocation_policy_t iree_vm_invocation_policy_t;
typedef uint32_t iree_vm_context_flags_t;
typedef uint32_t iree_vm_invocation_flags_t;
typedef uintptr_t iree_vm_ref_type_t;

enum { IREE_VM_CONTEXT_FLAG_NONE = 0u };
enum { IREE_VM_INVOCATION_FLAG_NONE = 0u };
#define IREE_VM_TYPE_CAPACITY_DEFAULT 32

typedef struct iree_vm_ref_t {
  void* ptr;
  iree_vm_ref_type_t type;
} iree_vm_ref_t;

typedef enum iree_vm_value_type_e {
  IREE_VM_VALUE_TYPE_NONE = 0,
  IREE_VM_VALUE_TYPE_I8 = 1,
  IREE_VM_VALUE_TYPE_I16 = 2,
  IREE_VM_VALUE_TYPE_I32 = 3,
  IREE_VM_VALUE_TYPE_I64 = 4,
  IREE_VM_VALUE_TYPE_F32 = 5,
  IREE_VM_VALUE_TYPE_F64 = 6,
} iree_vm_value_type_t;

typedef struct iree_vm_value_t {
  iree_vm_value_type_t type;
  union {
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
    float f32;
    double f64;
    uint8_t value_storage[8];
  };
} iree_vm_value_t;

// Either a value type (low bits) or a reference type; all zero takes anything.
typedef struct iree_vm_type_def_t {
  uintptr_t value_type_bits : 3;
  uintptr_t ref_type_bits : sizeof(uintptr_t) * 8 - 3;
} iree_vm_type_def_t;

typedef enum iree_vm_function_linkage_e {
  IREE_VM_FUNCTION_LINKAGE_INTERNAL = 0,
  IREE_VM_FUNCTION_LINKAGE_IMPORT = 1,
  IREE_VM_FUNCTION_LINKAGE_EXPORT = 2,
  IREE_VM_FUNCTION_LINKAGE_IMPORT_OPTIONAL = 3,
  IREE_VM_FUNCTION_LINKAGE_EXPORT_OPTIONAL = 4,
} iree_vm_function_linkage_t;

typedef struct iree_vm_function_t {
  iree_vm_module_t* module;
  uint16_t linkage;
  uint16_t ordinal;
} iree_vm_function_t;

typedef struct iree_vm_function_signature_t {
  iree_string_view_t calling_convention;
} iree_vm_function_signature_t;

typedef struct iree_vm_module_signature_t {
  uint32_t version;
  iree_host_size_t attr_count;
  iree_host_size_t import_function_count;
  iree_host_size_t export_function_count;
  iree_host_size_t internal_function_count;
} iree_vm_module_signature_t;

iree_status_t iree_vm_instance_create(iree_host_size_t type_capacity, iree_allocator_t allocator,
                                      iree_vm_instance_t** out_instance);
void iree_vm_instance_retain(iree_vm_instance_t* instance);
void iree_vm_instance_release(iree_vm_instance_t* instance);

void iree_vm_module_retain(iree_vm_module_t* module);
void iree_vm_module_release(iree_vm_module_t* module);
iree_vm_module_signature_t iree_vm_module_signature(const iree_vm_module_t* module);
iree_status_t iree_vm_module_lookup_function_by_ordinal(const iree_vm_module_t* module,
                                                        iree_vm_function_linkage_t linkage,
                                                        iree_host_size_t ordinal,
                                                        iree_vm_function_t* out_function);
iree_string_view_t iree_vm_function_name(const iree_vm_function_t* function);
iree_vm_function_signature_t iree_vm_function_signature(const iree_vm_function_t* function);

// `archive_allocator` frees the contents with the module; a null allocator leaves them alone.
iree_status_t iree_vm_bytecode_module_create(iree_vm_instance_t* instance,
                                             iree_const_byte_span_t archive_contents,
                                             iree_allocator_t archive_allocator,
                                             iree_allocator_t allocator,
                                             iree_vm_module_t** out_module);

iree_status_t iree_vm_context_create_with_modules(
    iree_vm_instance_t* instance, iree_vm_context_flags_t flags, iree_host_size_t module_count,
    iree_vm_module_t** modules, iree_allocator_t allocator, iree_vm_context_t** out_context);
void iree_vm_context_retain(iree_vm_context_t* context);
void iree_vm_context_release(iree_vm_context_t* context);

iree_status_t iree_vm_invoke(iree_vm_context_t* context, iree_vm_function_t function,
                             iree_vm_invocation_flags_t flags,
                             const iree_vm_invocation_policy_t* policy,
                             const iree_vm_list_t* inputs, iree_vm_list_t* outputs,
                             iree_allocator_t host_allocator);

iree_status_t iree_vm_list_create(const iree_vm_type_def_t element_type,
                                  iree_host_size_t initial_capacity, iree_allocator_t allocator,
                                  iree_vm_list_t** out_list);
void iree_vm_list_retain(iree_vm_list_t* list);
void iree_vm_list_release(iree_vm_list_t* list);
iree_host_size_t iree_vm_list_size(const iree_vm_list_t* list);
iree_status_t iree_vm_list_get_value(const iree_vm_list_t* list, iree_host_size_t i,
                                     iree_vm_value_t* out_value);
iree_status_t iree_vm_list_push_value(iree_vm_list_t* list, const iree_vm_value_t* value);
iree_status_t iree_vm_list_push_ref_move(iree_vm_list_t* list, iree_vm_ref_t* value);

// --- hal ------------------------------------------------------------------------------------

typedef struct iree_hal_allocator_t iree_hal_allocator_t;
typedef struct iree_hal_buffer_t iree_hal_buffer_t;
typedef struct iree_hal_buffer_view_t iree_hal_buffer_view_t;
typedef struct iree_hal_device_t iree_hal_device_t;
typedef struct iree_hal_driver_t iree_hal_driver_t;
typedef uint64_t iree_hal_queue_affinity_t;
typedef iree_device_size_t iree_hal_dim_t;
typedef uint32_t iree_hal_element_type_t;
typedef uint32_t iree_hal_encoding_type_t;
typedef uint32_t iree_hal_transfer_buffer_flags_t;
typedef uint32_t iree_hal_mapping_mode_t;
typedef uint32_t iree_hal_external_buffer_flags_t;

#define IREE_HAL_WHOLE_BUFFER ((iree_device_size_t)(-1))

typedef uint32_t iree_hal_memory_type_t;
enum iree_hal_memory_type_bits_t {
  IREE_HAL_MEMORY_TYPE_OPTIMAL = 1u << 0,
  IREE_HAL_MEMORY_TYPE_HOST_VISIBLE = 1u << 1,
  IREE_HAL_MEMORY_TYPE_HOST_COHERENT = 1u << 2,
  IREE_HAL_MEMORY_TYPE_HOST_LOCAL =
      IREE_HAL_MEMORY_TYPE_HOST_VISIBLE | IREE_HAL_MEMORY_TYPE_HOST_COHERENT | (1u << 6),
  IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE = 1u << 4,
  IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL = IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE | (1u << 5),
};

typedef uint16_t iree_hal_memory_access_t;
enum iree_hal_memory_access_bits_t {
  IREE_HAL_MEMORY_ACCESS_READ = 1u << 0,
  IREE_HAL_MEMORY_ACCESS_WRITE = 1u << 1,
  IREE_HAL_MEMORY_ACCESS_DISCARD = 1u << 2,
  IREE_HAL_MEMORY_ACCESS_UNALIGNED = 1u << 4,
  IREE_HAL_MEMORY_ACCESS_ALL =
      IREE_HAL_MEMORY_ACCESS_READ | IREE_HAL_MEMORY_ACCESS_WRITE | IREE_HAL_MEMORY_ACCESS_DISCARD,
};

typedef uint32_t iree_hal_buffer_usage_t;
enum iree_hal_buffer_usage_bits_t {
  IREE_HAL_BUFFER_USAGE_TRANSFER_SOURCE = 1u << 0,
  IREE_HAL_BUFFER_USAGE_TRANSFER_TARGET = 1u << 1,
  IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE_READ = 1u << 10,
  IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE_WRITE = 1u << 11,
  IREE_HAL_BUFFER_USAGE_DEFAULT =
      IREE_HAL_BUFFER_USAGE_TRANSFER_SOURCE | IREE_HAL_BUFFER_USAGE_TRANSFER_TARGET |
      IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE_READ | IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE_WRITE,
  IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED = 1u << 24,
  IREE_HAL_BUFFER_USAGE_MAPPING_ACCESS_RANDOM = 1u << 27,
  IREE_HAL_BUFFER_USAGE_MAPPING =
      IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED | IREE_HAL_BUFFER_USAGE_MAPPING_ACCESS_RANDOM,
};

enum iree_hal_mapping_mode_bits_t { IREE_HAL_MAPPING_MODE_SCOPED = 1u << 0 };
enum { IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT = 0 };
enum { IREE_HAL_EXTERNAL_BUFFER_FLAG_NONE = 0u };
enum iree_hal_encoding_types_t { IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR = 1 };

// numerical type << 24 | bits
enum iree_hal_element_types_t {
  IREE_HAL_ELEMENT_TYPE_BOOL_8 = 0x13000008,
  IREE_HAL_ELEMENT_TYPE_INT_8 = 0x10000008,
  IREE_HAL_ELEMENT_TYPE_SINT_8 = 0x11000008,
  IREE_HAL_ELEMENT_TYPE_UINT_8 = 0x12000008,
  IREE_HAL_ELEMENT_TYPE_INT_16 = 0x10000010,
  IREE_HAL_ELEMENT_TYPE_INT_32 = 0x10000020,
  IREE_HAL_ELEMENT_TYPE_SINT_32 = 0x11000020,
  IREE_HAL_ELEMENT_TYPE_INT_64 = 0x10000040,
  IREE_HAL_ELEMENT_TYPE_SINT_64 = 0x11000040,
  IREE_HAL_ELEMENT_TYPE_FLOAT_16 = 0x21000010,
  IREE_HAL_ELEMENT_TYPE_FLOAT_32 = 0x21000020,
  IREE_HAL_ELEMENT_TYPE_FLOAT_64 = 0x21000040,
};

typedef struct iree_hal_buffer_params_t {
  iree_hal_buffer_usage_t usage;
  iree_hal_memory_access_t access;
  iree_hal_memory_type_t type;
  iree_hal_queue_affinity_t queue_affinity;
  iree_device_size_t min_alignment;
} iree_hal_buffer_params_t;

typedef struct iree_hal_buffer_mapping_impl_t {
  iree_device_size_t byte_offset;
  iree_hal_memory_access_t allowed_access;
  uint32_t is_persistent : 1;
  uint32_t reserved_flags : 31;
  uint64_t reserved[1];
} iree_hal_buffer_mapping_impl_t;

typedef struct iree_hal_buffer_mapping_t {
  iree_byte_span_t contents;
  struct iree_hal_buffer_t* buffer;
  iree_hal_buffer_mapping_impl_t impl;
} iree_hal_buffer_mapping_t;

typedef void (*iree_hal_buffer_release_fn_t)(void* user_data, struct iree_hal_buffer_t* buffer);

typedef struct {
  iree_hal_buffer_release_fn_t fn;
  void* user_data;
} iree_hal_buffer_release_callback_t;

typedef enum iree_hal_external_buffer_type_e {
  IREE_HAL_EXTERNAL_BUFFER_TYPE_NONE = 0,
  IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION,
  IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION,
  IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD,
  IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_WIN32,
} iree_hal_external_buffer_type_t;

typedef struct iree_hal_external_buffer_t {
  iree_hal_external_buffer_type_t type;
  iree_hal_external_buffer_flags_t flags;
  iree_device_size_t size;
  union {
    struct {
      void* ptr;
    } host_allocation;
    struct {
      uint64_t ptr;
    } device_allocation;
    struct {
      int fd;
    } opaque_fd;
    struct {
      void* handle;
    } opaque_win32;
  } handle;
} iree_hal_external_buffer_t;

iree_status_t iree_hal_allocator_create_heap(iree_string_view_t identifier,
                                             iree_allocator_t data_allocator,
                                             iree_allocator_t host_allocator,
                                             iree_hal_allocator_t** out_allocator);
void iree_hal_allocator_retain(iree_hal_allocator_t* allocator);
void iree_hal_allocator_release(iree_hal_allocator_t* allocator);
iree_status_t iree_hal_allocator_allocate_buffer(iree_hal_allocator_t* allocator,
                                                 iree_hal_buffer_params_t params,
                                                 iree_device_size_t allocation_size,
                                                 iree_hal_buffer_t** out_buffer);
// On failure the release callback is not called.
iree_status_t iree_hal_allocator_import_buffer(iree_hal_allocator_t* allocator,
                                               iree_hal_buffer_params_t params,
                                               iree_hal_external_buffer_t* external_buffer,
                                               iree_hal_buffer_release_callback_t release_callback,
                                               iree_hal_buffer_t** out_buffer);

void iree_hal_buffer_retain(iree_hal_buffer_t* buffer);
void iree_hal_buffer_release(iree_hal_buffer_t* buffer);
iree_status_t iree_hal_buffer_subspan(iree_hal_buffer_t* buffer, iree_device_size_t byte_offset,
                                      iree_device_size_t byte_length,
                                      iree_allocator_t host_allocator,
                                      iree_hal_buffer_t** out_buffer);
iree_device_size_t iree_hal_buffer_byte_length(const iree_hal_buffer_t* buffer);
iree_hal_memory_type_t iree_hal_buffer_memory_type(const iree_hal_buffer_t* buffer);
iree_hal_buffer_usage_t iree_hal_buffer_allowed_usage(const iree_hal_buffer_t* buffer);
iree_status_t iree_hal_buffer_map_range(iree_hal_buffer_t* buffer,
                                        iree_hal_mapping_mode_t mapping_mode,
                                        iree_hal_memory_access_t memory_access,
                                        iree_device_size_t byte_offset,
                                        iree_device_size_t byte_length,
                                        iree_hal_buffer_mapping_t* out_buffer_mapping);
iree_status_t iree_hal_buffer_unmap_range(iree_hal_buffer_mapping_t* buffer_mapping);
iree_status_t iree_hal_buffer_mapping_flush_range(iree_hal_buffer_mapping_t* buffer_mapping,
                                                  iree_device_size_t byte_offset,
                                                  iree_device_size_t byte_length);
iree_status_t iree_hal_buffer_mapping_invalidate_range(iree_hal_buffer_mapping_t* buffer_mapping,
                                                       iree_device_size_t byte_offset,
                                                       iree_device_size_t byte_length);

iree_status_t iree_hal_buffer_view_create(iree_hal_buffer_t* buffer, iree_host_size_t shape_rank,
                                          const iree_hal_dim_t* shape,
                                          iree_hal_element_type_t element_type,
                                          iree_hal_encoding_type_t encoding_type,
                                          iree_allocator_t host_allocator,
                                          iree_hal_buffer_view_t** out_buffer_view);
void iree_hal_buffer_view_retain(iree_hal_buffer_view_t* buffer_view);
void iree_hal_buffer_view_release(iree_hal_buffer_view_t* buffer_view);
iree_hal_buffer_t* iree_hal_buffer_view_buffer(const iree_hal_buffer_view_t* buffer_view);
iree_host_size_t iree_hal_buffer_view_shape_rank(const iree_hal_buffer_view_t* buffer_view);
iree_hal_dim_t iree_hal_buffer_view_shape_dim(const iree_hal_buffer_view_t* buffer_view,
                                              iree_host_size_t index);
iree_hal_element_type_t iree_hal_buffer_view_element_type(
    const iree_hal_buffer_view_t* buffer_view);
iree_vm_ref_t iree_hal_buffer_view_retain_ref(iree_hal_buffer_view_t* value);
iree_hal_buffer_view_t* iree_vm_list_get_buffer_view_retain(const iree_vm_list_t* list,
                                                            iree_host_size_t i);

void iree_hal_device_retain(iree_hal_device_t* device);
void iree_hal_device_release(iree_hal_device_t* device);
iree_hal_allocator_t* iree_hal_device_allocator(iree_hal_device_t* device);
iree_status_t iree_hal_device_transfer_h2d(iree_hal_device_t* device, const void* source,
                                           iree_hal_buffer_t* target,
                                           iree_device_size_t target_offset,
                                           iree_device_size_t data_length,
                                           iree_hal_transfer_buffer_flags_t flags,
                                           iree_timeout_t timeout);
iree_status_t iree_hal_device_transfer_d2h(iree_hal_device_t* device, iree_hal_buffer_t* source,
                                           iree_device_size_t source_offset, void* target,
                                           iree_device_size_t data_length,
                                           iree_hal_transfer_buffer_flags_t flags,
                                           iree_timeout_t timeout);
iree_status_t iree_hal_device_transfer_d2d(
    iree_hal_device_t* device, iree_hal_buffer_t* source, iree_device_size_t source_offset,
    iree_hal_buffer_t* target, iree_device_size_t target_offset, iree_device_size_t data_length,
    iree_hal_transfer_buffer_flags_t flags, iree_timeout_t timeout);

void iree_hal_driver_retain(iree_hal_driver_t* driver);
void iree_hal_driver_release(iree_hal_driver_t* driver);
iree_status_t iree_hal_driver_create_default_device(iree_hal_driver_t* driver,
                                                    iree_allocator_t host_allocator,
                                                    iree_hal_device_t** out_device);

}  // extern "C"

#include "csrc/iree/capi_modules.h"

#endif  // !PYVLM_IREE_INSTALLED

// The system allocator's function is public only through a build option of IREE.
#if defined(PYVLM_IREE_INSTALLED)
extern "C" iree_status_t iree_allocator_libc_ctl(void* self, iree_allocator_command_t command,
                                                 const void* params, void** inout_ptr);
#endif
