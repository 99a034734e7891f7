// Layouts that the runtime library was built with, on 64-bit Linux. A build against other headers,
// or a slip in capi.h, stops here instead of corrupting memory.
#include <cstddef>

#include "csrc/iree/capi.h"

#define PYVLM_SIZE(type, size) static_assert(sizeof(type) == (size), #type)
#define PYVLM_OFFSET(type, field, offset) \
  static_assert(offsetof(type, field) == (offset), #type "." #field)

PYVLM_SIZE(iree_string_view_t, 16);
PYVLM_SIZE(iree_byte_span_t, 16);
PYVLM_SIZE(iree_timeout_t, 16);
PYVLM_SIZE(iree_allocator_t, 16);
PYVLM_SIZE(iree_vm_ref_t, 16);
PYVLM_SIZE(iree_vm_value_t, 16);
PYVLM_OFFSET(iree_vm_value_t, i64, 8);
PYVLM_SIZE(iree_vm_type_def_t, 8);
PYVLM_SIZE(iree_vm_function_t, 16);
PYVLM_OFFSET(iree_vm_function_t, linkage, 8);
PYVLM_OFFSET(iree_vm_function_t, ordinal, 10);
PYVLM_SIZE(iree_vm_module_signature_t, 40);
PYVLM_OFFSET(iree_vm_module_signature_t, export_function_count, 24);

PYVLM_SIZE(iree_hal_buffer_params_t, 32);
PYVLM_OFFSET(iree_hal_buffer_params_t, access, 4);
PYVLM_OFFSET(iree_hal_buffer_params_t, type, 8);
PYVLM_OFFSET(iree_hal_buffer_params_t, queue_affinity, 16);
PYVLM_OFFSET(iree_hal_buffer_params_t, min_alignment, 24);
PYVLM_SIZE(iree_hal_buffer_mapping_t, 48);
PYVLM_OFFSET(iree_hal_buffer_mapping_t, buffer, 16);
PYVLM_OFFSET(iree_hal_buffer_mapping_t, impl, 24);
PYVLM_SIZE(iree_hal_buffer_release_callback_t, 16);
PYVLM_SIZE(iree_hal_external_buffer_t, 24);
PYVLM_OFFSET(iree_hal_external_buffer_t, size, 8);
PYVLM_OFFSET(iree_hal_external_buffer_t, handle, 16);
PYVLM_SIZE(iree_hal_module_device_policy_t, 16);
PYVLM_SIZE(iree_hal_module_debug_sink_t, 32);
PYVLM_SIZE(iree_hal_executable_import_provider_t, 16);
PYVLM_SIZE(iree_hal_task_device_params_t, 16);

PYVLM_SIZE(iree_task_topology_group_t, 64);
PYVLM_OFFSET(iree_task_topology_group_t, constructive_sharing_mask, 56);
PYVLM_SIZE(iree_task_topology_t, 8 + 64 * 64);
PYVLM_SIZE(iree_task_executor_options_t, 40);
PYVLM_OFFSET(iree_task_executor_options_t, worker_spin_ns, 16);
PYVLM_OFFSET(iree_task_executor_options_t, worker_stack_size, 24);
PYVLM_SIZE(iree_io_file_handle_primitive_t, 24);
PYVLM_SIZE(iree_io_file_handle_release_callback_t, 16);
