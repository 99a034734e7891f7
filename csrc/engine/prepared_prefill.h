#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/engine/image_rows.h"
#include "csrc/engine/sampling_params.h"
#include "csrc/engine/types.h"

namespace pyvlm {

// A part of the prompt, in order: a run of text ids, or one image. An image takes one id of the
// logical prompt (its placeholder) and expanded_ids.size() positions of the cache.
struct Segment {
  enum class Kind { text, image };

  static Segment Text(std::int64_t start, std::int64_t count);
  static Segment Image(std::int64_t index, std::vector<std::int32_t> expanded_ids);

  Kind kind = Kind::text;
  std::int64_t start = 0;                  // text: first logical id
  std::int64_t count = 0;                  // text: number of logical ids, > 0
  std::int64_t image = 0;                  // image: index into PreparedPrefill::images
  std::vector<std::int32_t> expanded_ids;  // image: markers, and image_token_id where a row goes
};

// One image. Pixels and embeddings are borrowed host memory: C-contiguous, aligned to its elements,
// owned by the host, read-only, valid until the lease given with it to Engine::Submit is released.
// Cached rows borrow nothing.
struct ImageInput {
  enum class Kind { pixels, embeddings, cached };

  static constexpr std::size_t kMaxCacheKeyBytes = 256;

  // Copies `valid`: two numbers a tile.
  static ImageInput Pixels(const float* patches, std::span<const std::int32_t> valid,
                           std::int64_t num_tiles, std::int64_t num_patches,
                           std::int64_t patch_dim);
  static ImageInput Embeddings(const void* rows, DType dtype, std::int64_t num_rows,
                               std::int64_t hidden_size);
  // `rows` from Engine::CachedImage.
  static ImageInput Cached(std::shared_ptr<const ImageRows> rows);

  Kind kind = Kind::pixels;
  DType dtype = DType::f32;
  const void* data = nullptr;    // pixels f32 [tiles, patches, patch_dim]
                                 // embeddings dtype [num_rows, hidden_size]
  std::int64_t num_tiles = 0;    // pixels
  std::int64_t num_patches = 0;  // pixels
  std::int64_t patch_dim = 0;    // pixels
  std::int64_t num_rows = 0;     // embeddings, cached
  std::int64_t hidden_size = 0;  // embeddings, cached
  // Pixels: [tiles, 2] rows and columns of real patches. Owned, unlike the data: kernels take these
  // for bounds, so they must be the numbers that were checked.
  std::vector<std::int32_t> valid;
  // Pixels: names the rows in the engine's cache, empty = they are not kept. Whatever the rows
  // depend on must be in it: the pixels themselves or the picture and every setting of how it was
  // prepared. The engine believes it.
  std::string cache_key;
  std::shared_ptr<const ImageRows> rows;  // cached
};

// Where an image lies in the expanded prompt: positions [begin, end).
struct ImageSpan {
  int image = 0;
  int begin = 0;
  int end = 0;
  int num_rows = 0;  // positions in it that take an encoder row
};

// A validated prompt with everything that a generation needs: the one thing that an engine takes.
// Immutable after construction and free of host-language objects, so any thread may read it and
// any thread may drop the last reference. It borrows the images' memory (ImageInput).
class PreparedPrefill {
 public:
  struct Fields {
    std::vector<std::int32_t> logical_ids;  // one placeholder id per image
    std::vector<Segment> segments;          // cover logical_ids in order, without gaps
    std::vector<ImageInput> images;         // each used by exactly one segment
    std::int32_t image_token_id = -1;       // placeholder and row marker; -1 = no images
    SamplingParams sampling;
    std::optional<std::int64_t> max_new_tokens;  // none = what is left of the capacity
    std::vector<std::int32_t> stop_token_ids;    // end the sequence, are never emitted
    std::optional<double> deadline_s;            // from submit; > 0
  };

  // Checks everything that can be checked without a model, the finiteness of the image data
  // included. Throws kEmptyPrompt, kPlaceholderMismatch, kImageCount, kImageShape, kNonFinite,
  // kInvalidParameter.
  explicit PreparedPrefill(Fields fields);

  const std::vector<std::int32_t>& logical_ids() const { return fields_.logical_ids; }
  const std::vector<ImageInput>& images() const { return fields_.images; }
  const SamplingParams& sampling() const { return fields_.sampling; }
  const std::optional<std::int64_t>& max_new_tokens() const { return fields_.max_new_tokens; }
  const std::vector<std::int32_t>& stop_token_ids() const { return fields_.stop_token_ids; }
  const std::optional<double>& deadline_s() const { return fields_.deadline_s; }

  int num_prompt_tokens() const { return static_cast<int>(fields_.logical_ids.size()); }
  int num_positions() const { return static_cast<int>(tokens_.size()); }
  int num_images() const { return static_cast<int>(fields_.images.size()); }

  // Per position: the id that is embedded as text, or image_token_id where a row goes.
  std::span<const std::int32_t> tokens() const { return tokens_; }
  // Per position: index into the rows of its image, -1 = embedded as text.
  std::span<const std::int32_t> row_index() const { return row_index_; }
  // In order of position.
  std::span<const ImageSpan> image_spans() const { return image_spans_; }
  // Logical ids without the placeholders: what the repetition penalty sees of the prompt.
  std::vector<std::int32_t> TextIds() const;

  // Throws kNonFinite naming the image if a value of its buffer is NaN or infinite. The host may
  // write to the buffers after construction, hence the second look at submit.
  void CheckFinite() const;

 private:
  void CheckParameters() const;
  void CheckImages() const;
  void Expand();
  void ExpandText(const Segment& segment, std::size_t& cursor);
  void ExpandImage(const Segment& segment, std::size_t& cursor, std::vector<bool>& used);

  Fields fields_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> row_index_;
  std::vector<ImageSpan> image_spans_;
};

}  // namespace pyvlm
