// Prints size, field offsets and function types as the included declarations have them. Compiled
// twice by test_capi_layout.py: with our capi.h, and with the headers of IREE.
#include <cstddef>
#include <cstdio>
#include <typeinfo>

#include "csrc/iree/symbols.h"

#define TYPE(type) std::printf(#type " size %zu align %zu\n", sizeof(type), alignof(type))
#define FIELD(type, field) \
  std::printf(#type "." #field " %zu %zu\n", offsetof(type, field), sizeof(type::field))
#define VALUE(name) std::printf(#name " %llu\n", static_cast<unsigned long long>(name))

static void Base() {
  TYPE(iree_string_view_t);
  FIELD(iree_string_view_t, size);
  TYPE(iree_string_pair_t);
  FIELD(iree_string_pair_t, value);
  TYPE(iree_byte_span_t);
  FIELD(iree_byte_span_t, data_length);
  TYPE(iree_const_byte_span_t);
  TYPE(iree_timeout_t);
  FIELD(iree_timeout_t, nanos);
  TYPE(iree_allocator_t);
  FIELD(iree_allocator_t, ctl);
  TYPE(iree_allocator_alloc_params_t);
  TYPE(iree_vm_ref_t);
  FIELD(iree_vm_ref_t, type);
  TYPE(iree_vm_value_t);
  FIELD(iree_vm_value_t, i64);
  TYPE(iree_vm_type_def_t);
  TYPE(iree_vm_function_t);
  FIELD(iree_vm_function_t, linkage);
  FIELD(iree_vm_function_t, ordinal);
  TYPE(iree_vm_function_signature_t);
  TYPE(iree_vm_module_signature_t);
  FIELD(iree_vm_module_signature_t, export_function_count);
}

static void Hal() {
  TYPE(iree_hal_buffer_params_t);
  FIELD(iree_hal_buffer_params_t, usage);
  FIELD(iree_hal_buffer_params_t, access);
  FIELD(iree_hal_buffer_params_t, type);
  FIELD(iree_hal_buffer_params_t, queue_affinity);
  FIELD(iree_hal_buffer_params_t, min_alignment);
  TYPE(iree_hal_buffer_mapping_t);
  FIELD(iree_hal_buffer_mapping_t, contents);
  FIELD(iree_hal_buffer_mapping_t, buffer);
  FIELD(iree_hal_buffer_mapping_t, impl);
  TYPE(iree_hal_buffer_release_callback_t);
  FIELD(iree_hal_buffer_release_callback_t, user_data);
  TYPE(iree_hal_external_buffer_t);
  FIELD(iree_hal_external_buffer_t, type);
  FIELD(iree_hal_external_buffer_t, flags);
  FIELD(iree_hal_external_buffer_t, size);
  FIELD(iree_hal_external_buffer_t, handle);
  TYPE(iree_hal_module_device_policy_t);
  TYPE(iree_hal_module_debug_sink_t);
  TYPE(iree_hal_executable_import_provider_t);
  FIELD(iree_hal_executable_import_provider_t, resolve);
  TYPE(iree_hal_task_device_params_t);
  FIELD(iree_hal_task_device_params_t, queue_scope_flags);
}

static void TaskAndIo() {
  TYPE(iree_thread_affinity_t);
  TYPE(iree_task_topology_group_t);
  FIELD(iree_task_topology_group_t, name);
  FIELD(iree_task_topology_group_t, constructive_sharing_mask);
  TYPE(iree_task_topology_t);
  FIELD(iree_task_topology_t, groups);
  TYPE(iree_task_executor_options_t);
  FIELD(iree_task_executor_options_t, worker_base_index);
  FIELD(iree_task_executor_options_t, worker_spin_ns);
  FIELD(iree_task_executor_options_t, worker_stack_size);
  FIELD(iree_task_executor_options_t, worker_local_memory_size);
  TYPE(iree_io_file_handle_primitive_t);
  FIELD(iree_io_file_handle_primitive_t, value);
  TYPE(iree_io_file_handle_release_callback_t);
#if !defined(PYVLM_IREE_INSTALLED) || defined(PYVLM_LAYOUT_HIP)
  TYPE(iree_hal_hip_device_params_t);
  FIELD(iree_hal_hip_device_params_t, async_allocations);
  FIELD(iree_hal_hip_device_params_t, memory_pools);
  FIELD(iree_hal_hip_device_params_t, external_stream);
  TYPE(iree_hal_hip_driver_options_t);
  FIELD(iree_hal_hip_driver_options_t, hip_lib_search_paths);
#endif
}

static void Values() {
  VALUE(IREE_STATUS_RESOURCE_EXHAUSTED);
  VALUE(IREE_STATUS_UNAVAILABLE);
  VALUE(IREE_STATUS_INCOMPATIBLE);
  VALUE(IREE_STATUS_CODE_MASK);
  VALUE(IREE_TIMEOUT_ABSOLUTE);
  VALUE(IREE_ALLOCATOR_COMMAND_MALLOC);
  VALUE(IREE_ALLOCATOR_COMMAND_CALLOC);
  VALUE(IREE_ALLOCATOR_COMMAND_REALLOC);
  VALUE(IREE_ALLOCATOR_COMMAND_FREE);
  VALUE(IREE_VM_TYPE_CAPACITY_DEFAULT);
  VALUE(IREE_VM_VALUE_TYPE_I32);
  VALUE(IREE_VM_VALUE_TYPE_I64);
  VALUE(IREE_VM_FUNCTION_LINKAGE_EXPORT);
  VALUE(IREE_HAL_MEMORY_TYPE_HOST_VISIBLE);
  VALUE(IREE_HAL_MEMORY_TYPE_HOST_COHERENT);
  VALUE(IREE_HAL_MEMORY_TYPE_HOST_LOCAL);
  VALUE(IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE);
  VALUE(IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL);
  VALUE(IREE_HAL_MEMORY_ACCESS_READ);
  VALUE(IREE_HAL_MEMORY_ACCESS_WRITE);
  VALUE(IREE_HAL_MEMORY_ACCESS_ALL);
  VALUE(IREE_HAL_MEMORY_ACCESS_UNALIGNED);
  VALUE(IREE_HAL_BUFFER_USAGE_DEFAULT);
  VALUE(IREE_HAL_BUFFER_USAGE_MAPPING);
  VALUE(IREE_HAL_MAPPING_MODE_SCOPED);
  VALUE(IREE_HAL_WHOLE_BUFFER);
  VALUE(IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION);
  VALUE(IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR);
  VALUE(IREE_HAL_ELEMENT_TYPE_BOOL_8);
  VALUE(IREE_HAL_ELEMENT_TYPE_INT_8);
  VALUE(IREE_HAL_ELEMENT_TYPE_SINT_8);
  VALUE(IREE_HAL_ELEMENT_TYPE_UINT_8);
  VALUE(IREE_HAL_ELEMENT_TYPE_INT_16);
  VALUE(IREE_HAL_ELEMENT_TYPE_INT_32);
  VALUE(IREE_HAL_ELEMENT_TYPE_INT_64);
  VALUE(IREE_HAL_ELEMENT_TYPE_FLOAT_16);
  VALUE(IREE_HAL_ELEMENT_TYPE_FLOAT_32);
  VALUE(IREE_HAL_ELEMENT_TYPE_FLOAT_64);
  VALUE(IREE_HAL_EXECUTABLE_IMPORT_RESOLUTION_MISSING_OPTIONAL);
  VALUE(IREE_TASK_EXECUTOR_MAX_WORKER_COUNT);
  VALUE(IREE_IO_FILE_ACCESS_READ);
  VALUE(IREE_IO_PARAMETER_INDEX_PROVIDER_DEFAULT_MAX_CONCURRENT_OPERATIONS);
}

// Parameter and result types by their names.
static void Signatures() {
#define SIGNATURE(function) \
  std::printf("iree_" #function " %s\n", typeid(decltype(::iree_##function)).name());
  PYVLM_IREE_SYMBOLS(SIGNATURE)
#if !defined(PYVLM_IREE_INSTALLED) || defined(PYVLM_LAYOUT_HIP)
  SIGNATURE(hal_hip_device_params_initialize)
  SIGNATURE(hal_hip_driver_options_initialize)
  SIGNATURE(hal_hip_driver_create)
#endif
#undef SIGNATURE
}

int main() {
  Base();
  Hal();
  TaskAndIo();
  Values();
  Signatures();
}
