// Rows of images kept between requests.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/testing/engine_host.h"
#include "csrc/testing/fake_runner.h"
#include "csrc/testing/prefills.h"

namespace pyvlm {
namespace {

constexpr std::int64_t kTileBytes = 2 * FakeRunner::kRowBytes;

// One engine with a cache of so many tiles, and prompts of one image with a key.
struct Scene {
  explicit Scene(std::int64_t tiles)
      : fake(std::make_shared<FakeRunner>(FakeRunner::SmallInfo(2, 128))),
        host(fake, {.check_invariants = true, .image_cache_bytes = tiles * kTileBytes}) {}

  static PreparedPrefill::Fields Fields(const TestImage& image, const std::string& key) {
    auto fields = TestFields(5, 1, {image}, 6);
    fields.images[0] = image.input();  // the caller's memory, not that of a copy
    fields.images[0].cache_key = key;
    return fields;
  }

  static std::shared_ptr<const PreparedPrefill> Prefill(PreparedPrefill::Fields fields) {
    return std::make_shared<const PreparedPrefill>(std::move(fields));
  }

  const EngineHost::Received& Generate(const std::shared_ptr<const PreparedPrefill>& prefill) {
    return host.Finish(host.Submit(prefill));
  }

  // Of the pixels, to fill the cache.
  std::vector<std::int32_t> Encode(const TestImage& image, const std::string& key) {
    return Generate(Prefill(Fields(image, key))).token_ids;
  }

  // The same prompt with rows in place of the pixels.
  static std::shared_ptr<const PreparedPrefill> Cached(const TestImage& image,
                                                       std::shared_ptr<const ImageRows> rows) {
    auto fields = Fields(image, "");
    fields.images[0] = ImageInput::Cached(std::move(rows));
    return Prefill(std::move(fields));
  }

  EngineStats Stats() { return host.engine().Stats(); }

  void CheckClean() {
    CHECK(host.num_leases() == 0);
    CHECK(!host.was_lease_released_twice());
    CHECK(fake->num_live_images() == 0);
    CHECK(fake->num_violations() == 0);
    CHECK(Stats().num_leases == 0);
    CHECK(Stats().num_running == 0);
  }

  std::shared_ptr<FakeRunner> fake;
  EngineHost host;
};

std::string CodeOf(auto&& work) {
  try {
    work();
  } catch (const Error& error) {
    return std::string(ErrorCodeName(error.code()));
  }
  return "";
}

TEST_CASE("cached rows give the tokens of the pixels, without encoding") {
  Scene scene(8);
  const TestImage image = TestImage::Pixels(3, 1);
  CHECK(scene.host.engine().CachedImage("a") == nullptr);
  const auto tokens = scene.Encode(image, "a");
  const EngineStats before = scene.Stats();
  CHECK(before.num_encode_units == 9);
  const auto rows = scene.host.engine().CachedImage("a");
  REQUIRE(rows);
  CHECK(rows->num_rows() == 6);
  CHECK(scene.Generate(Scene::Cached(image, rows)).token_ids == tokens);
  CHECK(scene.Generate(Scene::Cached(image, rows)).last.times.encode_us == 0);
  const EngineStats after = scene.Stats();
  CHECK(after.num_encode_units == before.num_encode_units);
  CHECK(after.encode_us == before.encode_us);
  CHECK(after.image_cache.num_hits == 1);
  CHECK(after.image_cache.num_misses == 1);
  CHECK(after.image_cache.num_bytes == 3 * kTileBytes);
  scene.CheckClean();
}

TEST_CASE("without a key, or without a budget, nothing is kept") {
  Scene scene(8);
  scene.Encode(TestImage::Pixels(1, 1), "");
  CHECK(scene.Stats().image_cache.num_entries == 0);
  CHECK(scene.host.engine().CachedImage("") == nullptr);
  Scene off(0);
  const auto tokens = off.Encode(TestImage::Pixels(1, 1), "a");
  CHECK(off.Encode(TestImage::Pixels(1, 1), "a") == tokens);
  CHECK(off.host.engine().CachedImage("a") == nullptr);
  CHECK(off.Stats().image_cache.num_misses == 0);
  CHECK(off.Stats().num_encode_units == 6);
}

TEST_CASE("eviction by bytes; held rows outlive it, the engine and the runner") {
  const TestImage image = TestImage::Pixels(2, 1);
  std::shared_ptr<const ImageRows> held;
  std::weak_ptr<const ImageRows> watched;
  {
    Scene scene(3);
    const auto tokens = scene.Encode(image, "a");
    held = scene.host.engine().CachedImage("a");
    scene.Encode(TestImage::Pixels(2, 2), "b");
    CHECK(scene.Stats().image_cache.num_evictions == 1);
    CHECK(scene.host.engine().CachedImage("a") == nullptr);
    CHECK(scene.host.engine().CachedImage("b") != nullptr);
    CHECK(scene.Generate(Scene::Cached(image, held)).token_ids == tokens);
    scene.Encode(TestImage::Pixels(4, 3), "beyond the budget");
    CHECK(scene.host.engine().CachedImage("b") != nullptr);
    scene.CheckClean();
    watched = held;
  }
  CHECK(!watched.expired());
  CHECK(held->num_rows() == 4);
  held.reset();
  CHECK(watched.expired());
}

TEST_CASE("cached rows stand beside pixels and embeddings, in any order") {
  Scene scene(8);
  const TestImage kept = TestImage::Pixels(2, 1);
  scene.Encode(kept, "kept");
  const std::vector<TestImage> others{TestImage::Pixels(3, 5), kept, TestImage::Embeddings(3, 7),
                                      kept};
  auto fields = TestFields(9, 2, others, 8);
  const PreparedPrefill uncached(fields);
  const auto rows = scene.host.engine().CachedImage("kept");
  fields.images[1] = fields.images[3] = ImageInput::Cached(rows);
  CHECK(scene.Generate(Scene::Prefill(fields)).token_ids ==
        FakeGreedyTokens(uncached, scene.fake->info(), 8));
  scene.CheckClean();
}

TEST_CASE("rows of another model, or of another shape, are refused") {
  Scene scene(8);
  Scene other(8);
  const TestImage image = TestImage::Pixels(1, 1);
  scene.Encode(image, "a");
  const auto rows = scene.host.engine().CachedImage("a");
  CHECK(CodeOf([&] { other.host.Submit(Scene::Cached(image, rows)); }) == "invalid_parameter");
  const auto wide = std::make_shared<const ImageRows>(rows->model(), 2, 5, 40);
  CHECK(CodeOf([&] { scene.host.Submit(Scene::Cached(image, wide)); }) == "image_shape");
  CHECK(CodeOf([&] { Scene::Cached(TestImage::Pixels(2, 1), rows); }) == "placeholder_mismatch");
  other.CheckClean();
}

TEST_CASE("two sequences may encode the same key") {
  Scene scene(8);
  const TestImage image = TestImage::Pixels(2, 1);
  scene.fake->Pause();
  const SeqId first = scene.host.Submit(Scene::Prefill(Scene::Fields(image, "a")));
  const SeqId second = scene.host.Submit(Scene::Prefill(Scene::Fields(image, "a")));
  scene.fake->Resume();
  CHECK(scene.host.Finish(first).token_ids == scene.host.Finish(second).token_ids);
  CHECK(scene.Stats().image_cache.num_entries == 1);
  CHECK(scene.Stats().num_encode_units == 12);
  scene.CheckClean();
}

TEST_CASE("shutdown lets go of the rows, cancel of a sequence that reads them too") {
  Scene scene(8);
  const TestImage image = TestImage::Pixels(1, 1);
  scene.Encode(image, "a");
  std::weak_ptr<const ImageRows> watched = scene.host.engine().CachedImage("a");
  scene.fake->PauseAtDecode();
  const SeqId seq_id = scene.host.Submit(Scene::Cached(image, watched.lock()));
  CHECK(scene.host.num_leases() == 0);
  CHECK(scene.fake->WaitUntilBlocked(60000));
  scene.host.engine().Cancel(seq_id);
  scene.fake->Resume();
  scene.host.Finish(seq_id);
  scene.CheckClean();
  CHECK(!watched.expired());
  scene.host.engine().Shutdown();
  CHECK(watched.expired());
  CHECK(scene.host.engine().CachedImage("a") == nullptr);
  CHECK(scene.Stats().image_cache.num_bytes == 0);
}

TEST_CASE("keys and budgets are checked") {
  const TestImage image = TestImage::Pixels(1, 1);
  Scene::Prefill(Scene::Fields(image, std::string(256, 'k')));
  CHECK(CodeOf([&] { Scene::Prefill(Scene::Fields(image, std::string(257, 'k'))); }) ==
        "invalid_parameter");
  CHECK(CodeOf([] { Scene scene(-1); }) == "invalid_parameter");
}

}  // namespace
}  // namespace pyvlm
