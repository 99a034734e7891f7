#include "csrc/testing/prefills.h"

#include <utility>

namespace pyvlm {
namespace {

std::int32_t TextId(int seed, int index) { return (seed * 17 + index * 5 + 1) % kTestImageId; }

std::vector<float> Values(std::size_t count, int seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(seed) + static_cast<float>(i) * 0.25f;
  }
  return values;
}

}  // namespace

TestImage TestImage::Pixels(int num_tiles, int seed) {
  const VisionInfo vision = *FakeRunner::SmallInfo(1, 1).vision;
  const auto tiles = static_cast<std::size_t>(num_tiles);
  TestImage image;
  image.num_tiles_ = num_tiles;
  image.num_rows_ = num_tiles * vision.rows_per_tile;
  image.values_ =
      Values(tiles * static_cast<std::size_t>(vision.num_patches * vision.patch_dim), seed);
  image.valid_.assign(2 * tiles, vision.grid);
  return image;
}

TestImage TestImage::Embeddings(int num_rows, int seed) {
  TestImage image;
  image.is_pixels_ = false;
  image.num_rows_ = num_rows;
  image.values_ = Values(static_cast<std::size_t>(num_rows) * 4, seed);
  return image;
}

ImageInput TestImage::input() const {
  if (!is_pixels_) return ImageInput::Embeddings(values_.data(), DType::f32, num_rows_, 4);
  return ImageInput::Pixels(values_.data(), valid_, num_tiles_, 4, 3);
}

PreparedPrefill::Fields TestFields(int num_text, int seed, const std::vector<TestImage>& images,
                                   int max_new_tokens) {
  PreparedPrefill::Fields fields;
  fields.image_token_id = kTestImageId;
  fields.max_new_tokens = max_new_tokens;
  for (int i = 0; i < num_text; ++i) fields.logical_ids.push_back(TextId(seed, i));
  if (num_text > 0) fields.segments.push_back(Segment::Text(0, num_text));
  for (std::size_t i = 0; i < images.size(); ++i) {
    const auto start = static_cast<std::int64_t>(fields.logical_ids.size());
    fields.logical_ids.push_back(kTestImageId);
    fields.logical_ids.push_back(TextId(seed, 100 + static_cast<int>(i)));
    std::vector<std::int32_t> expanded(static_cast<std::size_t>(images[i].num_rows()),
                                       kTestImageId);
    expanded.insert(expanded.begin(), 58);
    expanded.push_back(59);
    fields.segments.push_back(Segment::Image(static_cast<std::int64_t>(i), std::move(expanded)));
    fields.segments.push_back(Segment::Text(start + 1, 1));
    fields.images.push_back(images[i].input());
  }
  return fields;
}

std::shared_ptr<const PreparedPrefill> TestPrefill(int num_text, int seed,
                                                   const std::vector<TestImage>& images,
                                                   int max_new_tokens) {
  return std::make_shared<const PreparedPrefill>(
      TestFields(num_text, seed, images, max_new_tokens));
}

std::shared_ptr<const PreparedPrefill> TestText(int num_text, int seed, int max_new_tokens) {
  return TestPrefill(num_text, seed, {}, max_new_tokens);
}

}  // namespace pyvlm
