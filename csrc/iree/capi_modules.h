// Second half of capi.h, which includes it: task executor, local-task device, native kernel
// imports, HIP, parameter archives and the VM modules over them.
#pragma once

#include "csrc/iree/capi.h"

extern "C" {

// --- task -----------------------------------------------------------------------------------

typedef struct iree_task_executor_t iree_task_executor_t;
typedef uint32_t iree_task_scheduling_mode_t;
typedef uint64_t iree_task_topology_group_mask_t;

#define IREE_TASK_EXECUTOR_MAX_WORKER_COUNT (64)

typedef struct iree_thread_affinity_t {
  uint32_t group_any : 1;
  uint32_t group : 8;
  uint32_t reserved : 23;
  uint32_t id_assigned : 1;
  uint32_t id : 30;
  uint32_t smt : 1;
} iree_thread_affinity_t;

typedef struct iree_task_topology_caches_t {
  uint32_t l1_data;
  uint32_t l2_data;
  uint32_t l3_data;
} iree_task_topology_caches_t;

typedef struct iree_task_topology_group_t {
  uint8_t group_index;
  char name[31];
  uint32_t processor_index;
  iree_task_topology_caches_t caches;
  iree_thread_affinity_t ideal_thread_affinity;
  iree_task_topology_group_mask_t constructive_sharing_mask;
} iree_task_topology_group_t;

typedef struct iree_task_topology_t {
  iree_host_size_t group_count;
  iree_task_topology_group_t groups[IREE_TASK_EXECUTOR_MAX_WORKER_COUNT];
} iree_task_topology_t;

typedef struct iree_task_executor_options_t {
  iree_task_scheduling_mode_t scheduling_mode;
  iree_host_size_t worker_base_index;
  iree_duration_t worker_spin_ns;
  iree_host_size_t worker_stack_size;
  iree_host_size_t worker_local_memory_size;
} iree_task_executor_options_t;

void iree_task_topology_initialize_from_group_count(iree_host_size_t group_count,
                                                    iree_task_topology_t* out_topology);
void iree_task_topology_deinitialize(iree_task_topology_t* topology);
void iree_task_executor_options_initialize(iree_task_executor_options_t* out_options);
iree_status_t iree_task_executor_create(iree_task_executor_options_t options,
                                        const iree_task_topology_t* topology,
                                        iree_allocator_t allocator,
                                        iree_task_executor_t** out_executor);
void iree_task_executor_retain(iree_task_executor_t* executor);
void iree_task_executor_release(iree_task_executor_t* executor);

// --- local devices --------------------------------------------------------------------------

typedef struct iree_hal_executable_plugin_manager_t iree_hal_executable_plugin_manager_t;
typedef struct iree_hal_executable_loader_t iree_hal_executable_loader_t;
typedef uint32_t iree_hal_executable_import_resolution_t;
enum iree_hal_executable_import_resolution_bits_e {
  IREE_HAL_EXECUTABLE_IMPORT_RESOLUTION_MISSING_OPTIONAL = 1u << 0,
};

// Fills out_fn_ptrs where it is null; a name that begins with '?' may stay unresolved.
typedef iree_status_t (*iree_hal_executable_import_provider_resolve_fn_t)(
    void* self, iree_host_size_t count, const char* const* symbol_names, void** out_fn_ptrs,
    void** out_fn_contexts, iree_hal_executable_import_resolution_t* out_resolution);

typedef struct iree_hal_executable_import_provider_t {
  void* self;
  iree_hal_executable_import_provider_resolve_fn_t resolve;
} iree_hal_executable_import_provider_t;

typedef uint32_t iree_task_scope_flags_t;

typedef struct iree_hal_task_device_params_t {
  iree_host_size_t arena_block_size;
  iree_task_scope_flags_t queue_scope_flags;
} iree_hal_task_device_params_t;

iree_status_t iree_hal_executable_plugin_manager_create(
    iree_host_size_t capacity, iree_allocator_t host_allocator,
    iree_hal_executable_plugin_manager_t** out_manager);
void iree_hal_executable_plugin_manager_retain(iree_hal_executable_plugin_manager_t* manager);
void iree_hal_executable_plugin_manager_release(iree_hal_executable_plugin_manager_t* manager);
iree_status_t iree_hal_executable_plugin_manager_register_provider(
    iree_hal_executable_plugin_manager_t* manager, iree_hal_executable_import_provider_t provider);

iree_status_t iree_hal_embedded_elf_loader_create(
    iree_hal_executable_plugin_manager_t* plugin_manager, iree_allocator_t host_allocator,
    iree_hal_executable_loader_t** out_executable_loader);
void iree_hal_executable_loader_retain(iree_hal_executable_loader_t* executable_loader);
void iree_hal_executable_loader_release(iree_hal_executable_loader_t* executable_loader);

void iree_hal_task_device_params_initialize(iree_hal_task_device_params_t* out_params);
// Retains executors, loaders and the allocator.
iree_status_t iree_hal_task_device_create(
    iree_string_view_t identifier, const iree_hal_task_device_params_t* params,
    iree_host_size_t queue_count, iree_task_executor_t* const* queue_executors,
    iree_host_size_t loader_count, iree_hal_executable_loader_t** loaders,
    iree_hal_allocator_t* device_allocator, iree_allocator_t host_allocator,
    iree_hal_device_t** out_device);

// --- HIP ------------------------------------------------------------------------------------

typedef enum iree_hal_hip_command_buffer_mode_e {
  IREE_HAL_HIP_COMMAND_BUFFER_MODE_GRAPH = 0,
  IREE_HAL_HIP_COMMAND_BUFFER_MODE_STREAM = 1,
} iree_hal_hip_command_buffer_mode_t;

typedef struct iree_hal_hip_memory_pool_params_t {
  uint64_t minimum_capacity;
  uint64_t release_threshold;
} iree_hal_hip_memory_pool_params_t;

typedef struct iree_hal_hip_memory_pooling_params_t {
  iree_hal_hip_memory_pool_params_t device_local;
  iree_hal_hip_memory_pool_params_t other;
} iree_hal_hip_memory_pooling_params_t;

typedef struct iree_hal_hip_device_params_t {
  iree_host_size_t queue_count;
  iree_host_size_t arena_block_size;
  iree_host_size_t event_pool_capacity;
  iree_hal_hip_command_buffer_mode_t command_buffer_mode;
  int32_t stream_tracing;
  bool async_allocations;
  iree_device_size_t file_transfer_buffer_size;
  iree_device_size_t file_transfer_chunk_size;
  iree_hal_hip_memory_pooling_params_t memory_pools;
  bool allow_inline_execution;
  bool async_caching;
  uint64_t external_stream;
} iree_hal_hip_device_params_t;

typedef struct iree_hal_hip_driver_options_t {
  int32_t default_device_index;
  iree_string_view_t* hip_lib_search_paths;
  iree_host_size_t hip_lib_search_path_count;
} iree_hal_hip_driver_options_t;

void iree_hal_hip_device_params_initialize(iree_hal_hip_device_params_t* out_params);
void iree_hal_hip_driver_options_initialize(iree_hal_hip_driver_options_t* out_options);
iree_status_t iree_hal_hip_driver_create(iree_string_view_t identifier,
                                         const iree_hal_hip_driver_options_t* options,
                                         const iree_hal_hip_device_params_t* default_params,
                                         iree_allocator_t host_allocator,
                                         iree_hal_driver_t** out_driver);

// --- VM modules over the HAL ----------------------------------------------------------------

typedef uint64_t iree_hal_module_device_allocator_select_flags_t;
typedef uint32_t iree_hal_module_flags_t;
enum iree_hal_module_flag_bits_t { IREE_HAL_MODULE_FLAG_NONE = 0u };

typedef struct iree_hal_device_queue_affinity_pair_t {
  iree_hal_device_t* device;
  iree_hal_queue_affinity_t queue_affinity;
} iree_hal_device_queue_affinity_pair_t;

typedef iree_status_t (*iree_hal_module_device_allocator_select_callback_fn_t)(
    void* user_data, iree_host_size_t device_count,
    const iree_hal_device_queue_affinity_pair_t* devices, iree_hal_memory_type_t memory_types,
    iree_hal_buffer_usage_t buffer_usage, iree_hal_module_device_allocator_select_flags_t flags,
    iree_host_size_t* out_selection);

typedef struct iree_hal_module_device_allocator_select_callback_t {
  iree_hal_module_device_allocator_select_callback_fn_t fn;
  void* user_data;
} iree_hal_module_device_allocator_select_callback_t;

typedef struct iree_hal_module_device_policy_t {
  iree_hal_module_device_allocator_select_callback_t allocator_select;
} iree_hal_module_device_policy_t;

typedef void (*iree_hal_module_debug_sink_release_callback_fn_t)(void* user_data);
typedef iree_status_t (*iree_hal_module_buffer_view_trace_callback_fn_t)(
    void* user_data, iree_string_view_t key, iree_host_size_t buffer_view_count,
    iree_hal_buffer_view_t** buffer_views, iree_allocator_t host_allocator);

typedef struct iree_hal_module_debug_sink_release_callback_t {
  iree_hal_module_debug_sink_release_callback_fn_t fn;
  void* user_data;
} iree_hal_module_debug_sink_release_callback_t;

typedef struct iree_hal_module_buffer_view_trace_callback_t {
  iree_hal_module_buffer_view_trace_callback_fn_t fn;
  void* user_data;
} iree_hal_module_buffer_view_trace_callback_t;

typedef struct iree_hal_module_debug_sink_t {
  iree_hal_module_debug_sink_release_callback_t release;
  iree_hal_module_buffer_view_trace_callback_t buffer_view_trace;
} iree_hal_module_debug_sink_t;

iree_status_t iree_hal_module_register_all_types(iree_vm_instance_t* instance);
iree_hal_module_device_policy_t iree_hal_module_device_policy_default(void);
iree_hal_module_debug_sink_t iree_hal_module_debug_sink_null(void);
iree_status_t iree_hal_module_create(iree_vm_instance_t* instance,
                                     iree_hal_module_device_policy_t device_policy,
                                     iree_host_size_t device_count, iree_hal_device_t** devices,
                                     iree_hal_module_flags_t flags,
                                     iree_hal_module_debug_sink_t debug_sink,
                                     iree_allocator_t host_allocator,
                                     iree_vm_module_t** out_module);

// --- parameter archives ---------------------------------------------------------------------

typedef struct iree_io_file_handle_t iree_io_file_handle_t;
typedef struct iree_io_parameter_index_t iree_io_parameter_index_t;
typedef struct iree_io_parameter_provider_t iree_io_parameter_provider_t;
typedef uint32_t iree_io_file_access_t;
enum iree_io_file_access_bits_t { IREE_IO_FILE_ACCESS_READ = 1u << 0 };
#define IREE_IO_PARAMETER_INDEX_PROVIDER_DEFAULT_MAX_CONCURRENT_OPERATIONS 16

typedef enum iree_io_file_handle_type_e {
  IREE_IO_FILE_HANDLE_TYPE_HOST_ALLOCATION = 0u,
  IREE_IO_FILE_HANDLE_TYPE_FD,
} iree_io_file_handle_type_t;

typedef union iree_io_file_handle_primitive_value_t {
  iree_byte_span_t host_allocation;
  int fd;
} iree_io_file_handle_primitive_value_t;

typedef struct iree_io_file_handle_primitive_t {
  iree_io_file_handle_type_t type;
  iree_io_file_handle_primitive_value_t value;
} iree_io_file_handle_primitive_t;

typedef void (*iree_io_file_handle_release_fn_t)(void* user_data,
                                                 iree_io_file_handle_primitive_t handle_primitive);

typedef struct {
  iree_io_file_handle_release_fn_t fn;
  void* user_data;
} iree_io_file_handle_release_callback_t;

// The callback runs when the last user of the memory, buffers included, has let go of it; it does
// not run if this call fails.
iree_status_t iree_io_file_handle_wrap_host_allocation(
    iree_io_file_access_t allowed_access, iree_byte_span_t host_allocation,
    iree_io_file_handle_release_callback_t release_callback, iree_allocator_t host_allocator,
    iree_io_file_handle_t** out_handle);
void iree_io_file_handle_retain(iree_io_file_handle_t* handle);
void iree_io_file_handle_release(iree_io_file_handle_t* handle);

iree_status_t iree_io_parameter_index_create(iree_allocator_t host_allocator,
                                             iree_io_parameter_index_t** out_index);
void iree_io_parameter_index_retain(iree_io_parameter_index_t* index);
void iree_io_parameter_index_release(iree_io_parameter_index_t* index);
iree_status_t iree_io_parse_irpa_index(iree_io_file_handle_t* file_handle,
                                       iree_io_parameter_index_t* index,
                                       iree_allocator_t host_allocator);
iree_status_t iree_io_parameter_index_provider_create(iree_string_view_t scope,
                                                      iree_io_parameter_index_t* index,
                                                      iree_host_size_t max_concurrent_operations,
                                                      iree_allocator_t host_allocator,
                                                      iree_io_parameter_provider_t** out_provider);
void iree_io_parameter_provider_retain(iree_io_parameter_provider_t* provider);
void iree_io_parameter_provider_release(iree_io_parameter_provider_t* provider);
iree_status_t iree_io_parameters_module_create(iree_vm_instance_t* instance,
                                               iree_host_size_t provider_count,
                                               iree_io_parameter_provider_t* const* providers,
                                               iree_allocator_t host_allocator,
                                               iree_vm_module_t** out_module);

}  // extern "C"
