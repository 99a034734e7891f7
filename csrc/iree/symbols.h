#pragma once

#include "csrc/iree/capi.h"

namespace pyvlm {

// Every function of the runtime that pyvlm calls, without its prefix "iree_".
#define PYVLM_IREE_SYMBOLS(X)                        \
  X(allocator_libc_ctl)                              \
  X(status_allocate_f)                               \
  X(status_free)                                     \
  X(status_to_string)                                \
  X(vm_instance_create)                              \
  X(vm_instance_retain)                              \
  X(vm_instance_release)                             \
  X(vm_module_retain)                                \
  X(vm_module_release)                               \
  X(vm_module_signature)                             \
  X(vm_module_lookup_function_by_ordinal)            \
  X(vm_function_name)                                \
  X(vm_function_signature)                           \
  X(vm_bytecode_module_create)                       \
  X(vm_context_create_with_modules)                  \
  X(vm_context_retain)                               \
  X(vm_context_release)                              \
  X(vm_invoke)                                       \
  X(vm_list_create)                                  \
  X(vm_list_retain)                                  \
  X(vm_list_release)                                 \
  X(vm_list_size)                                    \
  X(vm_list_get_value)                               \
  X(vm_list_push_value)                              \
  X(vm_list_push_ref_move)                           \
  X(vm_list_get_buffer_view_retain)                  \
  X(hal_allocator_create_heap)                       \
  X(hal_allocator_retain)                            \
  X(hal_allocator_release)                           \
  X(hal_allocator_allocate_buffer)                   \
  X(hal_allocator_import_buffer)                     \
  X(hal_buffer_retain)                               \
  X(hal_buffer_release)                              \
  X(hal_buffer_subspan)                              \
  X(hal_buffer_byte_length)                          \
  X(hal_buffer_memory_type)                          \
  X(hal_buffer_allowed_usage)                        \
  X(hal_buffer_map_range)                            \
  X(hal_buffer_unmap_range)                          \
  X(hal_buffer_mapping_flush_range)                  \
  X(hal_buffer_mapping_invalidate_range)             \
  X(hal_buffer_view_create)                          \
  X(hal_buffer_view_retain)                          \
  X(hal_buffer_view_release)                         \
  X(hal_buffer_view_buffer)                          \
  X(hal_buffer_view_shape_rank)                      \
  X(hal_buffer_view_shape_dim)                       \
  X(hal_buffer_view_element_type)                    \
  X(hal_buffer_view_retain_ref)                      \
  X(hal_device_retain)                               \
  X(hal_device_release)                              \
  X(hal_device_allocator)                            \
  X(hal_device_transfer_h2d)                         \
  X(hal_device_transfer_d2h)                         \
  X(hal_device_transfer_d2d)                         \
  X(hal_driver_retain)                               \
  X(hal_driver_release)                              \
  X(hal_driver_create_default_device)                \
  X(task_topology_initialize_from_group_count)       \
  X(task_topology_deinitialize)                      \
  X(task_executor_options_initialize)                \
  X(task_executor_create)                            \
  X(task_executor_retain)                            \
  X(task_executor_release)                           \
  X(hal_executable_plugin_manager_create)            \
  X(hal_executable_plugin_manager_retain)            \
  X(hal_executable_plugin_manager_release)           \
  X(hal_executable_plugin_manager_register_provider) \
  X(hal_embedded_elf_loader_create)                  \
  X(hal_executable_loader_retain)                    \
  X(hal_executable_loader_release)                   \
  X(hal_task_device_params_initialize)               \
  X(hal_task_device_create)                          \
  X(hal_module_register_all_types)                   \
  X(hal_module_device_policy_default)                \
  X(hal_module_debug_sink_null)                      \
  X(hal_module_create)                               \
  X(io_file_handle_wrap_host_allocation)             \
  X(io_file_handle_retain)                           \
  X(io_file_handle_release)                          \
  X(io_parameter_index_create)                       \
  X(io_parameter_index_retain)                       \
  X(io_parameter_index_release)                      \
  X(io_parse_irpa_index)                             \
  X(io_parameter_index_provider_create)              \
  X(io_parameter_provider_retain)                    \
  X(io_parameter_provider_release)                   \
  X(io_parameters_module_create)

// Drivers beyond local-task: null where the loaded library has not been built with them. An IREE
// installation offers its drivers through its registry instead (drivers.cc).
#if defined(PYVLM_IREE_INSTALLED)
#define PYVLM_IREE_OPTIONAL_SYMBOLS(X)
#else
#define PYVLM_IREE_OPTIONAL_SYMBOLS(X) \
  X(hal_hip_device_params_initialize)  \
  X(hal_hip_driver_options_initialize) \
  X(hal_hip_driver_create)
#endif

// Pointers to those functions, each with the type of its declaration in capi.h.
struct Symbols {
#define PYVLM_MEMBER(name) decltype(&::iree_##name) name = nullptr;
  PYVLM_IREE_SYMBOLS(PYVLM_MEMBER)
  PYVLM_IREE_OPTIONAL_SYMBOLS(PYVLM_MEMBER)
#undef PYVLM_MEMBER
};

}  // namespace pyvlm
