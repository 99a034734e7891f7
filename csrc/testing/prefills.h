#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/engine/prepared_prefill.h"
#include "csrc/testing/fake_runner.h"

namespace pyvlm {

// The placeholder and row marker of test prompts; other ids of a prompt are below it.
inline constexpr std::int32_t kTestImageId = 60;

// Images whose memory the test owns.
class TestImage {
 public:
  // Pixels for FakeRunner::SmallInfo; `seed` makes them differ.
  static TestImage Pixels(int num_tiles, int seed);
  // f32 rows of hidden size 4.
  static TestImage Embeddings(int num_rows, int seed);

  ImageInput input() const;
  int num_rows() const { return num_rows_; }

 private:
  bool is_pixels_ = true;
  int num_tiles_ = 0;
  int num_rows_ = 0;
  std::vector<float> values_;
  std::vector<std::int32_t> valid_;
};

// Text of `num_text` ids (made from `seed`), then the images, each followed by one text id. An
// image expands to a marker, its rows and a marker. `images` outlive the result.
PreparedPrefill::Fields TestFields(int num_text, int seed, const std::vector<TestImage>& images,
                                   int max_new_tokens);

std::shared_ptr<const PreparedPrefill> TestPrefill(int num_text, int seed,
                                                   const std::vector<TestImage>& images,
                                                   int max_new_tokens);

std::shared_ptr<const PreparedPrefill> TestText(int num_text, int seed, int max_new_tokens);

}  // namespace pyvlm
