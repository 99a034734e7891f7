#include "csrc/engine/prepared_prefill.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace pyvlm {
namespace {

// Far above any model, far below overflow of int: lengths up to it are added without a check.
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;

std::string ImageName(std::size_t index) { return "image " + std::to_string(index); }

[[noreturn]] void RejectPlaceholder(const std::string& message) {
  throw Error(ErrorCode::kPlaceholderMismatch, message, "segments");
}

// Elements of a shape; throws kImageShape unless every extent is positive and the product, in
// bytes of four, fits std::int64_t.
std::int64_t NumElements(std::size_t index, std::initializer_list<std::int64_t> shape) {
  std::int64_t total = 1;
  for (const std::int64_t extent : shape) {
    if (extent <= 0 || total > std::numeric_limits<std::int64_t>::max() / 4 / extent) {
      throw Error(ErrorCode::kImageShape,
                  ImageName(index) + " has an empty or oversized dimension (" +
                      std::to_string(extent) + ")",
                  "images");
    }
    total *= extent;
  }
  return total;
}

std::int64_t NumElements(std::size_t index, const ImageInput& input) {
  return input.kind == ImageInput::Kind::pixels
             ? NumElements(index, {input.num_tiles, input.num_patches, input.patch_dim})
             : NumElements(index, {input.num_rows, input.hidden_size});
}

// IEEE values are finite unless every exponent bit is set. Integer form, so that the loop is
// vectorised and no setting of the floating-point environment matters.
template <typename Word>
bool AllFinite(const void* data, std::int64_t count, Word exponent_mask) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  bool found = false;
  for (std::int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, bytes + static_cast<std::size_t>(i) * sizeof(Word), sizeof(Word));
    found |= (word & exponent_mask) == exponent_mask;
  }
  return !found;
}

std::size_t ItemSize(DType dtype) {
  return dtype == DType::f32 ? sizeof(float) : sizeof(std::uint16_t);
}

bool AllFinite(const ImageInput& input, std::int64_t count) {
  return input.dtype == DType::f32 ? AllFinite<std::uint32_t>(input.data, count, 0x7f800000u)
                                   : AllFinite<std::uint16_t>(input.data, count, 0x7c00u);
}

void CheckMemory(std::size_t index, const ImageInput& input) {
  if (input.data == nullptr) {
    throw Error(ErrorCode::kImageShape, ImageName(index) + " has no data", "images");
  }
  if (reinterpret_cast<std::uintptr_t>(input.data) % ItemSize(input.dtype) != 0) {
    throw Error(ErrorCode::kInvalidParameter, ImageName(index) + " is not aligned to its elements",
                "images");
  }
}

void CheckPixels(std::size_t index, const ImageInput& input) {
  // num_tiles has been bounded by NumElements.
  if (input.valid.size() != 2 * static_cast<std::size_t>(input.num_tiles)) {
    throw Error(ErrorCode::kImageShape,
                ImageName(index) + " has " + std::to_string(input.valid.size()) +
                    " numbers of valid patches for " + std::to_string(input.num_tiles) + " tiles",
                "images");
  }
  if (input.dtype != DType::f32) {
    throw Error(ErrorCode::kImageDtype, ImageName(index) + ": pixels must be float32", "images");
  }
  if (input.cache_key.size() > ImageInput::kMaxCacheKeyBytes) {
    throw Error(ErrorCode::kInvalidParameter,
                "cache_key must have at most " + std::to_string(ImageInput::kMaxCacheKeyBytes) +
                    " bytes, not " + std::to_string(input.cache_key.size()),
                "cache_key");
  }
}

void CheckIds(const std::vector<std::int32_t>& ids, const char* name) {
  const auto negative = std::find_if(ids.begin(), ids.end(), [](auto id) { return id < 0; });
  if (negative != ids.end()) {
    throw Error(ErrorCode::kInvalidParameter,
                std::string(name) + " holds the negative id " + std::to_string(*negative), name);
  }
}

}  // namespace

Segment Segment::Text(std::int64_t start, std::int64_t count) {
  return {.kind = Kind::text, .start = start, .count = count, .image = 0, .expanded_ids = {}};
}

Segment Segment::Image(std::int64_t index, std::vector<std::int32_t> expanded_ids) {
  return {.kind = Kind::image,
          .start = 0,
          .count = 0,
          .image = index,
          .expanded_ids = std::move(expanded_ids)};
}

ImageInput ImageInput::Pixels(const float* patches, std::span<const std::int32_t> valid,
                              std::int64_t num_tiles, std::int64_t num_patches,
                              std::int64_t patch_dim) {
  ImageInput input;
  input.kind = Kind::pixels;
  input.data = patches;
  input.valid.assign(valid.begin(), valid.end());
  input.num_tiles = num_tiles;
  input.num_patches = num_patches;
  input.patch_dim = patch_dim;
  return input;
}

ImageInput ImageInput::Embeddings(const void* rows, DType dtype, std::int64_t num_rows,
                                  std::int64_t hidden_size) {
  ImageInput input;
  input.kind = Kind::embeddings;
  input.dtype = dtype;
  input.data = rows;
  input.num_rows = num_rows;
  input.hidden_size = hidden_size;
  return input;
}

ImageInput ImageInput::Cached(std::shared_ptr<const ImageRows> rows) {
  ImageInput input;
  input.kind = Kind::cached;
  input.num_rows = rows->num_rows();
  input.hidden_size = rows->hidden_size();
  input.rows = std::move(rows);
  return input;
}

PreparedPrefill::PreparedPrefill(Fields fields) : fields_(std::move(fields)) {
  CheckParameters();
  Expand();
  CheckImages();
  CheckFinite();
}

void PreparedPrefill::CheckParameters() const {
  if (fields_.logical_ids.empty()) {
    throw Error(ErrorCode::kEmptyPrompt, "the prompt has no tokens", "prompt");
  }
  CheckIds(fields_.logical_ids, "logical_ids");
  CheckIds(fields_.stop_token_ids, "stop_token_ids");
  fields_.sampling.Validate();
  if (fields_.max_new_tokens.has_value() && *fields_.max_new_tokens < 0) {
    throw Error(ErrorCode::kInvalidParameter,
                "max_new_tokens must be >= 0, got " + std::to_string(*fields_.max_new_tokens),
                "max_new_tokens");
  }
  if (fields_.deadline_s.has_value() &&
      !(*fields_.deadline_s > 0.0 && std::isfinite(*fields_.deadline_s))) {
    throw Error(ErrorCode::kInvalidParameter, "deadline_s must be finite and > 0", "deadline_s");
  }
}

void PreparedPrefill::Expand() {
  std::size_t cursor = 0;
  std::vector<bool> used(fields_.images.size(), false);
  for (const Segment& segment : fields_.segments) {
    if (segment.kind == Segment::Kind::text) {
      ExpandText(segment, cursor);
    } else {
      ExpandImage(segment, cursor, used);
    }
    if (static_cast<std::int64_t>(tokens_.size()) > kMaxPositions) {
      throw Error(ErrorCode::kContextOverflow,
                  "the prompt has more than " + std::to_string(kMaxPositions) + " positions",
                  "prompt");
    }
  }
  if (cursor != fields_.logical_ids.size()) {
    RejectPlaceholder("segments cover " + std::to_string(cursor) + " of " +
                      std::to_string(fields_.logical_ids.size()) + " logical ids");
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused != used.end()) {
    throw Error(ErrorCode::kImageCount,
                ImageName(static_cast<std::size_t>(unused - used.begin())) +
                    " has no placeholder in the prompt: " + std::to_string(fields_.images.size()) +
                    " images, " + std::to_string(image_spans_.size()) + " placeholders",
                "images");
  }
}

void PreparedPrefill::ExpandText(const Segment& segment, std::size_t& cursor) {
  const auto left = static_cast<std::int64_t>(fields_.logical_ids.size() - cursor);
  if (segment.start != static_cast<std::int64_t>(cursor) || segment.count <= 0 ||
      segment.count > left) {
    RejectPlaceholder("text segment (start " + std::to_string(segment.start) + ", count " +
                      std::to_string(segment.count) + ") does not continue at logical id " +
                      std::to_string(cursor) + " of " + std::to_string(fields_.logical_ids.size()));
  }
  const auto first = fields_.logical_ids.begin() + static_cast<std::ptrdiff_t>(cursor);
  const auto last = first + static_cast<std::ptrdiff_t>(segment.count);
  if (fields_.image_token_id >= 0 && std::find(first, last, fields_.image_token_id) != last) {
    RejectPlaceholder("a text segment holds the image placeholder id " +
                      std::to_string(fields_.image_token_id));
  }
  tokens_.insert(tokens_.end(), first, last);
  row_index_.insert(row_index_.end(), static_cast<std::size_t>(segment.count), -1);
  cursor += static_cast<std::size_t>(segment.count);
}

void PreparedPrefill::ExpandImage(const Segment& segment, std::size_t& cursor,
                                  std::vector<bool>& used) {
  if (segment.image < 0 || segment.image >= static_cast<std::int64_t>(used.size())) {
    throw Error(ErrorCode::kImageCount,
                "a segment refers to image " + std::to_string(segment.image) + " of " +
                    std::to_string(used.size()),
                "images");
  }
  const auto index = static_cast<std::size_t>(segment.image);
  if (used[index]) {
    throw Error(ErrorCode::kImageCount, ImageName(index) + " is used by two segments", "images");
  }
  used[index] = true;
  if (fields_.image_token_id < 0 || cursor >= fields_.logical_ids.size() ||
      fields_.logical_ids[cursor] != fields_.image_token_id) {
    RejectPlaceholder(ImageName(index) + " has no placeholder at logical id " +
                      std::to_string(cursor));
  }
  CheckIds(segment.expanded_ids, "expanded_ids");
  ImageSpan span{.image = static_cast<int>(index),
                 .begin = static_cast<int>(tokens_.size()),
                 .end = 0,
                 .num_rows = 0};
  for (const std::int32_t id : segment.expanded_ids) {
    tokens_.push_back(id);
    row_index_.push_back(id == fields_.image_token_id ? span.num_rows++ : -1);
  }
  span.end = static_cast<int>(tokens_.size());
  if (span.num_rows == 0) RejectPlaceholder(ImageName(index) + " expands to no encoder row");
  image_spans_.push_back(span);
  ++cursor;
}

void PreparedPrefill::CheckImages() const {
  for (const ImageSpan& span : image_spans_) {
    const auto index = static_cast<std::size_t>(span.image);
    const ImageInput& input = fields_.images[index];
    NumElements(index, input);
    if (input.kind != ImageInput::Kind::cached) CheckMemory(index, input);
    const bool is_pixels = input.kind == ImageInput::Kind::pixels;
    if (is_pixels) CheckPixels(index, input);
    if (!is_pixels && input.num_rows != span.num_rows) {
      throw Error(ErrorCode::kPlaceholderMismatch,
                  ImageName(index) + " brings " + std::to_string(input.num_rows) +
                      " rows, its segment takes " + std::to_string(span.num_rows),
                  "images");
    }
  }
}

void PreparedPrefill::CheckFinite() const {
  for (std::size_t i = 0; i < fields_.images.size(); ++i) {
    const ImageInput& input = fields_.images[i];
    if (input.kind == ImageInput::Kind::cached) continue;
    if (!AllFinite(input, NumElements(i, input))) {
      throw Error(ErrorCode::kNonFinite, ImageName(i) + " holds a NaN or an infinity", "images");
    }
  }
}

std::vector<std::int32_t> PreparedPrefill::TextIds() const {
  std::vector<std::int32_t> ids;
  ids.reserve(fields_.logical_ids.size());
  for (const std::int32_t id : fields_.logical_ids) {
    if (fields_.image_token_id < 0 || id != fields_.image_token_id) ids.push_back(id);
  }
  return ids;
}

}  // namespace pyvlm
