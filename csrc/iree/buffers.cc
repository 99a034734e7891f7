#include "csrc/iree/buffers.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "csrc/iree/status.h"

namespace pyvlm {
namespace {

constexpr ErrorCode kFailed = ErrorCode::kEngineFailed;
constexpr iree_timeout_t kForever = {IREE_TIMEOUT_ABSOLUTE, std::numeric_limits<int64_t>::max()};

iree_device_size_t Size(int64_t bytes) { return static_cast<iree_device_size_t>(bytes); }

bool HostCanMap(const Buffer& buffer) {
  constexpr auto kUsage = IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED;
  return (Iree().hal_buffer_memory_type(buffer.get()) & IREE_HAL_MEMORY_TYPE_HOST_VISIBLE) != 0 &&
         (Iree().hal_buffer_allowed_usage(buffer.get()) & kUsage) != 0;
}

iree_hal_buffer_mapping_t Map(const Buffer& buffer, iree_hal_memory_access_t access) {
  iree_hal_buffer_mapping_t mapping{};
  Check(Iree().hal_buffer_map_range(buffer.get(), IREE_HAL_MAPPING_MODE_SCOPED, access, 0,
                                    IREE_HAL_WHOLE_BUFFER, &mapping),
        kFailed, "mapping a buffer");
  return mapping;
}

void Unmap(iree_hal_buffer_mapping_t& mapping) noexcept {
  iree_status_t status = Iree().hal_buffer_unmap_range(&mapping);
  if (status != nullptr) Iree().status_free(status);
  mapping = {};
}

bool IsCoherent(const Buffer& buffer) {
  return (Iree().hal_buffer_memory_type(buffer.get()) & IREE_HAL_MEMORY_TYPE_HOST_COHERENT) != 0;
}

// Ends a mapping that was written through: the device must see what the host wrote.
void FinishWrite(iree_hal_buffer_mapping_t& mapping, const Buffer& buffer) {
  iree_status_t status = nullptr;
  if (!IsCoherent(buffer)) {
    status = Iree().hal_buffer_mapping_flush_range(&mapping, 0, IREE_HAL_WHOLE_BUFFER);
  }
  Unmap(mapping);
  Check(status, kFailed, "writing to a mapped buffer");
}

void CheckLength(const Buffer& buffer, int64_t offset, int64_t bytes) {
  int64_t length = ByteLength(buffer);
  if (offset < 0 || bytes < 0 || bytes > length || offset > length - bytes) {
    throw Error(ErrorCode::kEngineFailed, std::to_string(bytes) + " bytes at " +
                                              std::to_string(offset) + " lie outside a buffer of " +
                                              std::to_string(length));
  }
}

void DropOwner(void* user_data, iree_hal_buffer_t*) {
  delete static_cast<std::shared_ptr<const void>*>(user_data);
}

}  // namespace

Buffer Allocate(const Device& device, int64_t bytes) {
  iree_hal_buffer_params_t params{};
  params.usage = IREE_HAL_BUFFER_USAGE_DEFAULT | IREE_HAL_BUFFER_USAGE_MAPPING;
  params.access = IREE_HAL_MEMORY_ACCESS_ALL;
  params.type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL | IREE_HAL_MEMORY_TYPE_HOST_VISIBLE;
  Buffer buffer;
  iree_status_t status =
      Iree().hal_allocator_allocate_buffer(device.allocator(), params, Size(bytes), buffer.Out());
  if (status != nullptr && StatusCode(status) != IREE_STATUS_RESOURCE_EXHAUSTED) {
    // A device of its own memory: not mappable, reached by transfers.
    Iree().status_free(status);
    params.usage = IREE_HAL_BUFFER_USAGE_DEFAULT;
    params.type = IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL;
    status =
        Iree().hal_allocator_allocate_buffer(device.allocator(), params, Size(bytes), buffer.Out());
  }
  Check(status, kFailed, "allocating " + std::to_string(bytes) + " bytes of device memory");
  return buffer;
}

Buffer Import(const Device& device, const void* data, int64_t bytes,
              std::shared_ptr<const void> owner, bool any_alignment) {
  if (!any_alignment && reinterpret_cast<uintptr_t>(data) % kBufferAlignment != 0) {
    throw Error(ErrorCode::kInvalidParameter, "memory to import must be aligned to " +
                                                  std::to_string(kBufferAlignment) + " bytes");
  }
  iree_hal_external_buffer_t external{};
  external.type = IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION;
  external.size = Size(bytes);
  external.handle.host_allocation.ptr = const_cast<void*>(data);
  iree_hal_buffer_params_t params{};
  params.usage = IREE_HAL_BUFFER_USAGE_DEFAULT | IREE_HAL_BUFFER_USAGE_MAPPING;
  params.access = IREE_HAL_MEMORY_ACCESS_ALL;
  if (any_alignment) params.access |= IREE_HAL_MEMORY_ACCESS_UNALIGNED;
  params.type = IREE_HAL_MEMORY_TYPE_HOST_LOCAL | IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE;
  auto holder = std::make_unique<std::shared_ptr<const void>>(std::move(owner));
  iree_hal_buffer_release_callback_t callback = {DropOwner, holder.get()};
  Buffer buffer;
  Check(Iree().hal_allocator_import_buffer(device.allocator(), params, &external, callback,
                                           buffer.Out()),
        kFailed, "importing host memory");
  holder.release();  // the callback's from here on
  return buffer;
}

Buffer Subspan(const Buffer& buffer, int64_t offset, int64_t bytes) {
  CheckLength(buffer, offset, bytes);
  Buffer part;
  Check(Iree().hal_buffer_subspan(buffer.get(), Size(offset), Size(bytes), HostAllocator(),
                                  part.Out()),
        kFailed, "taking a part of a buffer");
  return part;
}

void Write(const Device& device, const Buffer& target, const void* source, int64_t bytes) {
  CheckLength(target, 0, bytes);
  if (bytes == 0) return;
  if (HostCanMap(target)) {
    iree_hal_buffer_mapping_t mapping = Map(target, IREE_HAL_MEMORY_ACCESS_WRITE);
    std::memcpy(mapping.contents.data, source, static_cast<size_t>(bytes));
    FinishWrite(mapping, target);
    return;
  }
  Check(Iree().hal_device_transfer_h2d(device.hal(), source, target.get(), 0, Size(bytes),
                                       IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, kForever),
        kFailed, "writing to the device");
}

void Read(const Device& device, const Buffer& source, void* target, int64_t bytes) {
  CheckLength(source, 0, bytes);
  if (bytes == 0) return;
  Check(Iree().hal_device_transfer_d2h(device.hal(), source.get(), 0, target, Size(bytes),
                                       IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, kForever),
        kFailed, "reading from the device");
}

void Copy(const Device& device, const Buffer& source, int64_t source_offset, const Buffer& target,
          int64_t target_offset, int64_t bytes) {
  CheckLength(source, source_offset, bytes);
  CheckLength(target, target_offset, bytes);
  if (bytes == 0) return;
  Check(Iree().hal_device_transfer_d2d(device.hal(), source.get(), Size(source_offset),
                                       target.get(), Size(target_offset), Size(bytes),
                                       IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT, kForever),
        kFailed, "copying on the device");
}

void FillZero(const Device& device, const Buffer& buffer) {
  int64_t bytes = ByteLength(buffer);
  if (HostCanMap(buffer)) {
    iree_hal_buffer_mapping_t mapping = Map(buffer, IREE_HAL_MEMORY_ACCESS_WRITE);
    std::memset(mapping.contents.data, 0, static_cast<size_t>(bytes));
    FinishWrite(mapping, buffer);
    return;
  }
  constexpr int64_t kChunk = int64_t{1} << 20;
  std::vector<std::byte> zeros(static_cast<size_t>(std::min(bytes, kChunk)));
  for (int64_t offset = 0; offset < bytes; offset += kChunk) {
    int64_t size = std::min(kChunk, bytes - offset);
    Write(device, Subspan(buffer, offset, size), zeros.data(), size);
  }
}

int64_t ByteLength(const Buffer& buffer) {
  return static_cast<int64_t>(Iree().hal_buffer_byte_length(buffer.get()));
}

const void* HostAddress(const Buffer& buffer) {
  if (!HostCanMap(buffer)) return nullptr;
  iree_hal_buffer_mapping_t mapping = Map(buffer, IREE_HAL_MEMORY_ACCESS_READ);
  const void* address = mapping.contents.data;
  Unmap(mapping);
  return address;
}

BufferView MakeView(const Buffer& buffer, iree_hal_element_type_t type,
                    std::span<const int64_t> shape) {
  std::vector<iree_hal_dim_t> dims(shape.begin(), shape.end());
  BufferView view;
  Check(Iree().hal_buffer_view_create(buffer.get(), dims.size(), dims.data(), type,
                                      IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, HostAllocator(),
                                      view.Out()),
        kFailed, "creating a buffer view");
  return view;
}

Buffer BufferOf(const BufferView& view) {
  return Buffer::Borrow(Iree().hal_buffer_view_buffer(view.get()));
}

std::vector<int64_t> ShapeOf(const BufferView& view) {
  std::vector<int64_t> shape(Iree().hal_buffer_view_shape_rank(view.get()));
  for (size_t i = 0; i < shape.size(); ++i) {
    shape[i] = static_cast<int64_t>(Iree().hal_buffer_view_shape_dim(view.get(), i));
  }
  return shape;
}

iree_hal_element_type_t ElementTypeOf(const BufferView& view) {
  return Iree().hal_buffer_view_element_type(view.get());
}

int64_t ElementBytes(iree_hal_element_type_t type) {
  int64_t bits = type & 0xFF;
  if (bits == 0 || bits % 8 != 0) {
    throw Error(ErrorCode::kInvalidParameter,
                "elements of " + std::to_string(bits) + " bits are not supported");
  }
  return bits / 8;
}

HostView::HostView(const Device& device, Buffer buffer)
    : buffer_(std::move(buffer)), bytes_(ByteLength(buffer_)) {
  if (HostCanMap(buffer_)) {
    mapping_ = Map(buffer_, IREE_HAL_MEMORY_ACCESS_READ);
    data_ = mapping_.contents.data;
    if (!IsCoherent(buffer_)) {
      iree_status_t status =
          Iree().hal_buffer_mapping_invalidate_range(&mapping_, 0, IREE_HAL_WHOLE_BUFFER);
      if (status != nullptr) Unmap(mapping_);
      Check(status, kFailed, "reading a mapped buffer");
    }
    return;
  }
  copy_.resize(static_cast<size_t>(bytes_));
  Read(device, buffer_, copy_.data(), bytes_);
  data_ = copy_.data();
}

HostView::HostView(HostView&& other) noexcept { *this = std::move(other); }

HostView& HostView::operator=(HostView&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  buffer_ = std::move(other.buffer_);
  mapping_ = std::exchange(other.mapping_, {});
  copy_ = std::move(other.copy_);  // keeps its address
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

HostView::~HostView() { Reset(); }

void HostView::Reset() {
  if (mapping_.buffer != nullptr) Unmap(mapping_);
  buffer_.Reset();
  copy_.clear();
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace pyvlm
