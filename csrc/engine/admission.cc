#include "csrc/engine/admission.h"

#include <algorithm>
#include <span>
#include <string>

namespace pyvlm {
namespace {

std::string Numbers(const char* label, std::int64_t value) {
  return std::string(label) + " " + std::to_string(value);
}

int ResolveMaxNewTokens(const PreparedPrefill& prefill, int capacity) {
  const std::int64_t positions = prefill.num_positions();
  const auto& wanted = prefill.max_new_tokens();
  const std::int64_t left = capacity - positions;
  // Without a wish there must be room for one token at least.
  if (wanted.value_or(1) > left) {
    throw Error(ErrorCode::kContextOverflow,
                "the prompt takes " + std::to_string(positions) + " positions and " +
                    (wanted ? Numbers("max_new_tokens is", *wanted) : "max_new_tokens is unset") +
                    ", together beyond the capacity of " + std::to_string(capacity),
                wanted ? "max_new_tokens" : "prompt");
  }
  return static_cast<int>(wanted.value_or(left));
}

void CheckVocabulary(std::span<const std::int32_t> ids, int vocab_size, const char* name) {
  const auto outside =
      std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id >= vocab_size; });
  if (outside != ids.end()) {
    throw Error(ErrorCode::kInvalidParameter,
                std::string(name) + " holds the id " + std::to_string(*outside) +
                    ", the vocabulary has " + std::to_string(vocab_size),
                name);
  }
}

void CheckEmbeddings(const std::string& name, const ImageInput& input, int hidden_size) {
  if (input.hidden_size != hidden_size) {
    throw Error(ErrorCode::kImageShape,
                name + " has rows of " + std::to_string(input.hidden_size) +
                    " values, the model takes " + std::to_string(hidden_size),
                "images");
  }
}

void CheckCached(const std::string& name, const ImageInput& input, const RunnerInfo& info) {
  CheckEmbeddings(name, input, info.hidden_size);
  if (input.rows->model() != info.model) {
    throw Error(ErrorCode::kInvalidParameter, name + " was cached by another model", "images");
  }
}

void CheckValidPatches(const std::string& name, const ImageInput& input, int grid) {
  for (const std::int32_t count : input.valid) {
    if (count < 1 || count > grid) {
      throw Error(ErrorCode::kImageShape,
                  name + " has " + std::to_string(count) +
                      " valid patches along a side, the grid has " + std::to_string(grid),
                  "images");
    }
  }
}

void CheckPixels(const std::string& name, const ImageInput& input, const ImageSpan& span,
                 const RunnerInfo& info) {
  const VisionInfo& vision = *info.vision;
  if (input.num_patches != vision.num_patches || input.patch_dim != vision.patch_dim) {
    throw Error(ErrorCode::kImageShape,
                name + " has tiles of [" + std::to_string(input.num_patches) + ", " +
                    std::to_string(input.patch_dim) + "], the encoder takes [" +
                    std::to_string(vision.num_patches) + ", " + std::to_string(vision.patch_dim) +
                    "]",
                "images");
  }
  CheckValidPatches(name, input, vision.grid);
  // num_tiles is bounded by the size of an existing buffer, the product is far from overflow.
  if (input.num_tiles * vision.rows_per_tile != span.num_rows) {
    throw Error(ErrorCode::kPlaceholderMismatch,
                name + " gives " + std::to_string(input.num_tiles * vision.rows_per_tile) +
                    " rows, its segment takes " + std::to_string(span.num_rows),
                "segments");
  }
}

}  // namespace

int CheckAdmission(const PreparedPrefill& prefill, const RunnerInfo& info) {
  const int max_new_tokens = ResolveMaxNewTokens(prefill, info.capacity);
  CheckVocabulary(prefill.logical_ids(), info.vocab_size, "logical_ids");
  CheckVocabulary(prefill.tokens(), info.vocab_size, "expanded_ids");
  for (const auto& [id, bias] : prefill.sampling().logit_bias) {
    CheckVocabulary({&id, 1}, info.vocab_size, "logit_bias");
  }
  // Embeddings no less than pixels: a text model has not learnt rows of images.
  if (prefill.num_images() > 0 && !info.vision) {
    throw Error(ErrorCode::kModalityUnsupported, "the model has no vision encoder", "images");
  }
  for (const ImageSpan& span : prefill.image_spans()) {
    const ImageInput& input = prefill.images()[static_cast<std::size_t>(span.image)];
    const std::string name = "image " + std::to_string(span.image);
    if (input.kind == ImageInput::Kind::pixels) {
      CheckPixels(name, input, span, info);
    } else if (input.kind == ImageInput::Kind::cached) {
      CheckCached(name, input, info);
    } else {
      CheckEmbeddings(name, input, info.hidden_size);
    }
  }
  prefill.CheckFinite();
  return max_new_tokens;
}

}  // namespace pyvlm
