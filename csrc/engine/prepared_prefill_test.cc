#include "csrc/engine/prepared_prefill.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "csrc/engine/admission.h"
#include "csrc/testing/prefills.h"

namespace pyvlm {
namespace {

std::string CodeOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return std::string(ErrorCodeName(error.code()));
  }
  return "";
}

std::string MakeCode(const PreparedPrefill::Fields& fields) {
  return CodeOf([&] { PreparedPrefill prefill(fields); });
}

TEST_CASE("a prompt expands to positions, rows and spans") {
  const std::vector<TestImage> images{TestImage::Pixels(1, 1), TestImage::Embeddings(3, 2)};
  const PreparedPrefill prefill(TestFields(2, 0, images, 5));

  CHECK(prefill.num_prompt_tokens() == 6);  // 2 + (placeholder + 1) * 2
  CHECK(prefill.num_positions() == 13);     // 2 + (1 + 2 + 1) + 1 + (1 + 3 + 1) + 1
  const std::vector<std::int32_t> row_index(prefill.row_index().begin(), prefill.row_index().end());
  CHECK(row_index == std::vector<std::int32_t>{-1, -1, -1, 0, 1, -1, -1, -1, 0, 1, 2, -1, -1});
  REQUIRE(prefill.image_spans().size() == 2);
  CHECK(prefill.image_spans()[0].begin == 2);
  CHECK(prefill.image_spans()[0].end == 6);
  CHECK(prefill.image_spans()[1].num_rows == 3);
  CHECK(prefill.tokens()[2] == 58);
  const std::vector<std::int32_t>& logical = prefill.logical_ids();
  CHECK(prefill.TextIds() ==
        std::vector<std::int32_t>{logical[0], logical[1], logical[3], logical[5]});
}

TEST_CASE("images may be used in another order than they are given") {
  const std::vector<TestImage> images{TestImage::Pixels(1, 1), TestImage::Embeddings(3, 2)};
  auto fields = TestFields(1, 0, images, 1);
  std::swap(fields.segments[1].image, fields.segments[3].image);
  std::swap(fields.segments[1].expanded_ids, fields.segments[3].expanded_ids);
  const PreparedPrefill prefill(fields);
  CHECK(prefill.image_spans()[0].image == 1);
  CHECK(prefill.image_spans()[1].image == 0);
}

TEST_CASE("construction rejects what cannot be a prompt") {
  const std::vector<TestImage> images{TestImage::Pixels(1, 1)};
  const auto good = TestFields(3, 0, images, 5);
  REQUIRE(MakeCode(good) == "");
  auto fields = good;

  SUBCASE("no ids") {
    fields = {};
    CHECK(MakeCode(fields) == "empty_prompt");
  }
  SUBCASE("segments leave a gap") {
    fields.segments[0].count = 2;
    CHECK(MakeCode(fields) == "placeholder_mismatch");
  }
  SUBCASE("segments end early") {
    fields.segments.pop_back();
    CHECK(MakeCode(fields) == "placeholder_mismatch");
  }
  SUBCASE("a segment runs past the end") {
    fields.segments.back().count = std::numeric_limits<std::int64_t>::max();
    CHECK(MakeCode(fields) == "placeholder_mismatch");
  }
  SUBCASE("an empty text segment") {
    fields.segments.insert(fields.segments.begin(), Segment::Text(0, 0));
    CHECK(MakeCode(fields) == "placeholder_mismatch");
  }
  SUBCASE("a placeholder in text") {
    fields.logical_ids[1] = kTestImageId;
    CHECK(MakeCode(fields) == "placeholder_mismatch");
  }
  SUBCASE("an image without placeholder id") {
    fields.logical_ids[3] = 1;
    CHECK(MakeCode(fields) == "placeholder_mismatch");
  }
  SUBCASE("an image that takes no row") {
    fields.segments[1].expanded_ids = {58, 59};
    CHECK(MakeCode(fields) == "placeholder_mismatch");
  }
  SUBCASE("an image that no segment uses") {
    fields.images.push_back(images[0].input());
    CHECK(MakeCode(fields) == "image_count");
  }
  SUBCASE("a segment of an image that is not there") {
    fields.segments[1].image = 1;
    CHECK(MakeCode(fields) == "image_count");
  }
  SUBCASE("an image used twice") {
    fields.logical_ids.push_back(kTestImageId);
    fields.segments.push_back(fields.segments[1]);
    CHECK(MakeCode(fields) == "image_count");
  }
  SUBCASE("an image with an empty dimension") {
    fields.images[0].patch_dim = 0;
    CHECK(MakeCode(fields) == "image_shape");
  }
  SUBCASE("an image whose size overflows") {
    fields.images[0].num_tiles = std::int64_t{1} << 40;
    fields.images[0].num_patches = std::int64_t{1} << 40;
    CHECK(MakeCode(fields) == "image_shape");
  }
  SUBCASE("pixels in half precision") {
    fields.images[0].dtype = DType::f16;
    CHECK(MakeCode(fields) == "image_dtype");
  }
  SUBCASE("a negative id") {
    fields.logical_ids[0] = -1;
    CHECK(MakeCode(fields) == "invalid_parameter");
  }
  SUBCASE("a negative number of tokens") {
    fields.max_new_tokens = -1;
    CHECK(MakeCode(fields) == "invalid_parameter");
  }
  SUBCASE("a deadline that is not in the future") {
    fields.deadline_s = 0.0;
    CHECK(MakeCode(fields) == "invalid_parameter");
  }
}

TEST_CASE("embeddings must bring the rows that their segment takes") {
  const std::vector<TestImage> images{TestImage::Embeddings(3, 2)};
  auto fields = TestFields(1, 0, images, 1);
  fields.segments[1].expanded_ids.push_back(kTestImageId);
  CHECK(MakeCode(fields) == "placeholder_mismatch");
}

TEST_CASE("non-finite image values are found wherever they are") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::nanf("1"), -std::nanf("1")}) {
    for (const std::size_t index : {std::size_t{0}, std::size_t{5}, std::size_t{11}}) {
      std::vector<float> values(12, std::numeric_limits<float>::max());
      auto fields = TestFields(1, 0, {TestImage::Embeddings(3, 2)}, 1);
      fields.images[0] = ImageInput::Embeddings(values.data(), DType::f32, 3, 4);
      CHECK(MakeCode(fields) == "");
      values[index] = bad;
      CHECK(MakeCode(fields) == "non_finite");
    }
  }
  for (const int bad : {0x7c00, 0xfc00, 0x7e01}) {
    std::vector<std::uint16_t> halves(12, 0x7bff);  // the largest finite half
    auto fields = TestFields(1, 0, {TestImage::Embeddings(3, 2)}, 1);
    fields.images[0] = ImageInput::Embeddings(halves.data(), DType::f16, 3, 4);
    CHECK(MakeCode(fields) == "");
    halves[7] = static_cast<std::uint16_t>(bad);
    CHECK(MakeCode(fields) == "non_finite");
  }
}

TEST_CASE("sampling parameters outside their range are named") {
  const auto param_of = [](auto change) -> std::string {
    SamplingParams params;
    change(params);
    try {
      params.Validate();
    } catch (const Error& error) {
      return error.param();
    }
    return "";
  };
  const float nan = std::nanf("1");
  CHECK(param_of([](auto&) {}) == "");
  CHECK(param_of([](auto& p) { p.temperature = -0.1f; }) == "temperature");
  CHECK(param_of([&](auto& p) { p.temperature = nan; }) == "temperature");
  CHECK(param_of([](auto& p) { p.top_k = -2; }) == "top_k");
  CHECK(param_of([](auto& p) { p.top_p = 0.0f; }) == "top_p");
  CHECK(param_of([&](auto& p) { p.top_p = nan; }) == "top_p");
  CHECK(param_of([](auto& p) { p.min_p = 1.1f; }) == "min_p");
  CHECK(param_of([](auto& p) { p.repetition_penalty = 0.0f; }) == "repetition_penalty");
  CHECK(param_of([](auto& p) { p.presence_penalty = 2.1f; }) == "presence_penalty");
  CHECK(param_of([](auto& p) { p.frequency_penalty = -2.1f; }) == "frequency_penalty");
  CHECK(param_of([](auto& p) { p.logit_bias = {{1, 101.0f}}; }) == "logit_bias");
  CHECK(param_of([](auto& p) { p.logit_bias = {{1, 1.0f}, {1, 2.0f}}; }) == "logit_bias");
  CHECK(param_of([](auto& p) { p.logit_bias = {{-1, 1.0f}}; }) == "logit_bias");
}

TEST_CASE("admission: positions and new tokens must fit the capacity") {
  const RunnerInfo info = FakeRunner::SmallInfo(2, 32);
  CHECK(CheckAdmission(*TestText(20, 0, 12), info) == 12);
  CHECK(CheckAdmission(*TestText(32, 0, 0), info) == 0);
  auto fields = TestFields(20, 0, {}, 0);
  fields.max_new_tokens = std::nullopt;
  CHECK(CheckAdmission(PreparedPrefill(fields), info) == 12);

  try {
    CheckAdmission(*TestText(20, 0, 13), info);
    FAIL("20 + 13 positions were admitted to 32");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kContextOverflow);
    for (const char* number : {"20", "13", "32"}) {
      CHECK(std::string(error.what()).find(number) != std::string::npos);
    }
  }
  fields = TestFields(20, 0, {}, 0);
  fields.max_new_tokens = std::numeric_limits<std::int64_t>::max();
  CHECK(CodeOf([&] { CheckAdmission(PreparedPrefill(fields), info); }) == "context_overflow");
  fields = TestFields(32, 0, {}, 0);
  fields.max_new_tokens = std::nullopt;
  CHECK(CodeOf([&] { CheckAdmission(PreparedPrefill(fields), info); }) == "context_overflow");
}

TEST_CASE("admission: the image counts with its expanded length") {
  const std::vector<TestImage> images{TestImage::Pixels(4, 1)};  // 3 logical ids, 12 positions
  CHECK(CheckAdmission(*TestPrefill(1, 0, images, 4), FakeRunner::SmallInfo(1, 16)) == 4);
  CHECK(CodeOf([&] {
          CheckAdmission(*TestPrefill(1, 0, images, 4), FakeRunner::SmallInfo(1, 15));
        }) == "context_overflow");
}

TEST_CASE("admission checks a prompt against the model") {
  RunnerInfo info = FakeRunner::SmallInfo(2, 64);
  std::vector<TestImage> images{TestImage::Pixels(2, 1), TestImage::Embeddings(3, 1)};
  auto fields = TestFields(3, 0, images, 4);
  const auto code = [&] { return CodeOf([&] { CheckAdmission(PreparedPrefill(fields), info); }); };
  REQUIRE(code() == "");

  SUBCASE("id outside the vocabulary") {
    fields.logical_ids[0] = info.vocab_size;
    CHECK(code() == "invalid_parameter");
  }
  SUBCASE("bias outside the vocabulary") {
    fields.sampling.logit_bias = {{info.vocab_size, 1.0f}};
    CHECK(code() == "invalid_parameter");
  }
  SUBCASE("no vision encoder: neither pixels nor embeddings") {
    info.vision.reset();
    CHECK(code() == "modality_unsupported");
    const std::vector<TestImage> rows{images[1]};
    fields = TestFields(3, 0, rows, 4);
    CHECK(code() == "modality_unsupported");
    fields = TestFields(3, 0, {}, 4);
    CHECK(code() == "");
  }
  SUBCASE("another patch size") {
    info.vision->patch_dim = 4;
    CHECK(code() == "image_shape");
  }
  SUBCASE("another hidden size") {
    info.hidden_size = 8;
    CHECK(code() == "image_shape");
  }
  SUBCASE("another number of rows per tile") {
    info.vision->rows_per_tile = 3;
    CHECK(code() == "placeholder_mismatch");
  }
  SUBCASE("more valid patches than the grid has") {
    fields.images[0].valid = {2, 2, 2, 3};
    CHECK(code() == "image_shape");
  }
}

TEST_CASE("the numbers of valid patches are copied: what was checked is what runs") {
  const std::vector<float> values(2 * 4 * 3, 1.0f);
  std::vector<std::int32_t> valid{2, 2, 2, 1};
  const ImageInput input = ImageInput::Pixels(values.data(), valid, 2, 4, 3);
  const std::vector<TestImage> images{TestImage::Pixels(2, 1)};
  auto fields = TestFields(1, 0, images, 1);
  fields.images[0] = input;
  const PreparedPrefill prefill(fields);
  valid.assign({1000, -5, 0, 7});
  CHECK(prefill.images()[0].valid == std::vector<std::int32_t>{2, 2, 2, 1});
  CheckAdmission(prefill, FakeRunner::SmallInfo(1, 64));
  fields.images[0].valid.pop_back();
  CHECK(CodeOf([&] { PreparedPrefill{fields}; }) == "image_shape");
}

TEST_CASE("a buffer that is not aligned to its elements is refused") {
  const std::vector<float> values(16, 1.0f);
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  auto fields = TestFields(1, 0, {TestImage::Embeddings(3, 2)}, 1);
  fields.images[0] = ImageInput::Embeddings(bytes + 2, DType::f32, 3, 4);
  CHECK(CodeOf([&] { PreparedPrefill{fields}; }) == "invalid_parameter");
  fields.images[0] = ImageInput::Embeddings(bytes + 1, DType::f16, 3, 4);
  CHECK(CodeOf([&] { PreparedPrefill{fields}; }) == "invalid_parameter");
  fields.images[0] = ImageInput::Embeddings(bytes + 2, DType::f16, 3, 4);
  CHECK(CodeOf([&] { PreparedPrefill{fields}; }) == "");
}

TEST_CASE("admission looks at the image data again") {
  std::vector<float> values(12, 1.0f);
  auto fields = TestFields(1, 0, {TestImage::Embeddings(3, 2)}, 1);
  fields.images[0] = ImageInput::Embeddings(values.data(), DType::f32, 3, 4);
  const PreparedPrefill prefill(fields);
  values[3] = std::nanf("1");
  CHECK(CodeOf([&] { CheckAdmission(prefill, FakeRunner::SmallInfo(1, 64)); }) == "non_finite");
}

}  // namespace
}  // namespace pyvlm
