#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "csrc/iree/device.h"

namespace pyvlm {

using Buffer = Ref<iree_hal_buffer_t>;
using BufferView = Ref<iree_hal_buffer_view_t>;  // a buffer with element type and shape

// Compiled code assumes this alignment of the buffers that it is given, and so does the device
// when it imports memory.
inline constexpr size_t kBufferAlignment = 64;

// All functions: any thread; failures throw Error, out_of_memory or engine_failed.

// New device memory with undefined contents, mappable by the host where the device allows it.
Buffer Allocate(const Device& device, int64_t bytes);

// The host's own memory as a device buffer, without a copy. It must stay valid and in place until
// the buffer is gone; `owner` is dropped then, on whatever thread drops the last reference, or at
// once if this throws. Throws invalid_parameter if the memory is not aligned to kBufferAlignment
// while `any_alignment` is false. Pass true only if every program that gets the buffer reads it
// through native kernels, which need no more than the element's own alignment.
Buffer Import(const Device& device, const void* data, int64_t bytes,
              std::shared_ptr<const void> owner, bool any_alignment = false);

// Part of a buffer, sharing its memory and keeping it alive.
Buffer Subspan(const Buffer& buffer, int64_t offset, int64_t bytes);

// Copies between host and device memory; returns when done. The ranges must lie in the buffers.
void Write(const Device& device, const Buffer& target, const void* source, int64_t bytes);
void Read(const Device& device, const Buffer& source, void* target, int64_t bytes);
void Copy(const Device& device, const Buffer& source, int64_t source_offset, const Buffer& target,
          int64_t target_offset, int64_t bytes);
void FillZero(const Device& device, const Buffer& buffer);

int64_t ByteLength(const Buffer& buffer);
// Where the host sees the buffer; null if it cannot map it.
const void* HostAddress(const Buffer& buffer);

BufferView MakeView(const Buffer& buffer, iree_hal_element_type_t type,
                    std::span<const int64_t> shape);
inline BufferView MakeView(const Buffer& buffer, iree_hal_element_type_t type,
                           std::initializer_list<int64_t> shape) {
  return MakeView(buffer, type, std::span<const int64_t>(shape.begin(), shape.size()));
}
Buffer BufferOf(const BufferView& view);
std::vector<int64_t> ShapeOf(const BufferView& view);
iree_hal_element_type_t ElementTypeOf(const BufferView& view);
// Bytes of one element; of a type that is not made of whole bytes throws invalid_parameter.
int64_t ElementBytes(iree_hal_element_type_t type);

// The contents of a buffer as the host sees them: the device's memory itself if the host can map
// it, else a copy. The pointer is valid, and the buffer alive, as long as this object.
class HostView {
 public:
  HostView() = default;
  HostView(const Device& device, Buffer buffer);
  HostView(HostView&& other) noexcept;
  HostView& operator=(HostView&& other) noexcept;
  ~HostView();

  const void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // False if data() is a copy.
  bool is_mapped() const { return mapping_.buffer != nullptr; }
  void Reset();

 private:
  Buffer buffer_;
  iree_hal_buffer_mapping_t mapping_{};  // buffer is null when nothing is mapped
  std::vector<std::byte> copy_;
  const void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace pyvlm
