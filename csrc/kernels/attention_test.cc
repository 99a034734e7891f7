#include "csrc/kernels/kernel_testing.h"

namespace pyvlm::kernels {
namespace {

struct Heads {
  size_t num_heads, num_kv_heads, head_dim;
};

const std::vector<Heads> kHeads = {{9, 3, 64}, {4, 4, 32}, {4, 1, 8},   {7, 1, 24},
                                   {8, 2, 40}, {2, 1, 80}, {5, 1, 128}, {16, 2, 16}};

// A cache, its rope table and the reference of attention on it, in double.
template <typename W>
struct Cache {
  static constexpr size_t kLayers = 2, kSlots = 3, kLayer = 1;
  Heads heads;
  size_t capacity;
  float scale;
  Guarded<W> k, v;
  Guarded<float> rope;

  Cache(Random* random, Heads shape, size_t length, float magnitude = 1.0f)
      : heads(shape),
        capacity(length),
        scale(1 / std::sqrt(static_cast<float>(shape.head_dim))),
        k(ConvertTo<W>(random->Floats(NumElements(), magnitude))),
        v(ConvertTo<W>(random->Floats(NumElements(), magnitude))),
        rope(random->Floats(length * shape.head_dim)) {}

  size_t NumElements() const {
    return kLayers * kSlots * heads.num_kv_heads * capacity * heads.head_dim;
  }
  size_t QkvWidth() const { return (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim; }
  size_t OutWidth() const { return heads.num_heads * heads.head_dim; }
  size_t RowOffset(size_t slot, size_t head, size_t position) const {
    return (((kLayer * kSlots + slot) * heads.num_kv_heads + head) * capacity + position) *
           heads.head_dim;
  }

  std::vector<double> Rotated(const float* x, size_t position) const {
    const size_t half = heads.head_dim / 2;
    const float* angles = rope.data() + position * heads.head_dim;
    std::vector<double> y(heads.head_dim);
    for (size_t i = 0; i < half; ++i) {
      const double a = x[i], b = x[half + i];
      y[i] = a * angles[i] - b * angles[half + i];
      y[half + i] = b * angles[i] + a * angles[half + i];
    }
    return y;
  }

  // One output row of attention over what the cache holds at positions 0..position.
  std::vector<double> Reference(const float* qkv, size_t slot, size_t position) const {
    std::vector<double> out;
    for (size_t head = 0; head < heads.num_heads; ++head) {
      const size_t kv_head = head * heads.num_kv_heads / heads.num_heads;
      const auto query = Rotated(qkv + head * heads.head_dim, position);
      const W* keys = k.data() + RowOffset(slot, kv_head, 0);
      const W* values = v.data() + RowOffset(slot, kv_head, 0);
      std::vector<double> scores(position + 1);
      for (size_t t = 0; t <= position; ++t) {
        for (size_t d = 0; d < heads.head_dim; ++d) {
          scores[t] += query[d] * scale * ToFloat(keys[t * heads.head_dim + d]);
        }
      }
      const double largest = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - largest);
      for (size_t d = 0; d < heads.head_dim; ++d) {
        double value = 0;
        for (size_t t = 0; t <= position; ++t) {
          value += scores[t] / sum * ToFloat(values[t * heads.head_dim + d]);
        }
        out.push_back(value);
      }
    }
    return out;
  }

  // The cache rows of one position hold the rotated key and the value of a qkv row.
  void CheckWritten(const float* qkv, size_t slot, size_t position) const {
    for (size_t head = 0; head < heads.num_kv_heads; ++head) {
      const float* key = qkv + (heads.num_heads + head) * heads.head_dim;
      const float* value = key + heads.num_kv_heads * heads.head_dim;
      const auto rotated = Rotated(key, position);
      const size_t row = RowOffset(slot, head, position);
      const double rounding = std::is_same_v<W, Half> ? 4.9e-4 : 0;
      for (size_t d = 0; d < heads.head_dim; ++d) {
        REQUIRE(std::abs(ToFloat(k[row + d]) - rotated[d]) <=
                rounding * std::abs(rotated[d]) + 5e-7);
        W stored;
        FromFloat(value[d], &stored);
        REQUIRE(std::memcmp(&stored, &v[row + d], sizeof stored) == 0);
      }
    }
  }

  KvWriteParams<W> WriteParams(const Guarded<float>& qkv, size_t slot, size_t start, size_t rows) {
    return {qkv.input(), k.buffer(), v.buffer(),      rope.input(),       kLayer,         slot,
            start,       rows,       heads.num_heads, heads.num_kv_heads, heads.head_dim, kSlots,
            capacity,    {}};
  }
  AttnPrefillParams<W> PrefillParams(const Guarded<float>& qkv, Guarded<float>* out, size_t slot,
                                     size_t start, size_t rows) const {
    return {qkv.input(),
            k.input(),
            v.input(),
            rope.input(),
            out->buffer(),
            kLayer,
            slot,
            start,
            rows,
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            kSlots,
            capacity,
            BitsOf(scale),
            {}};
  }
  AttnDecodeParams<W> DecodeParams(const Guarded<float>& qkv, const Guarded<int32_t>& slots,
                                   const Guarded<int32_t>& positions, Guarded<float>* out,
                                   size_t rows) {
    return {qkv.input(),
            k.buffer(),
            v.buffer(),
            slots.input(),
            positions.input(),
            rope.input(),
            out->buffer(),
            kLayer,
            rows,
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            kSlots,
            capacity,
            BitsOf(scale),
            {}};
  }

  // Elements that differ from `before`, outside the rows [start, start + rows) of one slot.
  size_t CountForeignWrites(const Cache& before, size_t slot, size_t start, size_t rows) const {
    size_t foreign = 0;
    for (size_t i = 0; i < k.size(); ++i) {
      const size_t position = i / heads.head_dim % capacity;
      const size_t block = i / heads.head_dim / capacity / heads.num_kv_heads;
      const bool own =
          block == kLayer * kSlots + slot && position >= start && position < start + rows;
      const bool same = std::memcmp(&k[i], &before.k[i], sizeof(W)) == 0 &&
                        std::memcmp(&v[i], &before.v[i], sizeof(W)) == 0;
      if (!own && !same) ++foreign;
    }
    return foreign;
  }
};

template <typename W>
KernelFn Attention(const char* name, Isa isa) {
  return KernelOf(Suffixed<W>(std::string("pyvlm_") + name), isa);
}

TEST_CASE_TEMPLATE("attn_decode writes its rows and agrees with the reference", W, Half, float) {
  Random random(1);
  for (const Isa isa : SupportedIsas()) {
    for (const Heads heads : kHeads) {
      for (const size_t base : {0, 1, 3, 6, 30, 255, 256, 300, 517}) {
        CAPTURE(heads.num_heads);
        CAPTURE(heads.head_dim);
        CAPTURE(base);
        Cache<W> cache(&random, heads, 520);
        const Cache<W> before = cache;
        const Guarded<int32_t> slots(std::vector<int32_t>{2, 0, 1});
        const Guarded<int32_t> positions(
            std::vector<int32_t>{static_cast<int32_t>(base), static_cast<int32_t>(base / 2), 511});
        const Guarded<float> qkv(random.Floats(3 * cache.QkvWidth(), 2.0f));
        Guarded<float> out(2 * cache.OutWidth());
        RunShares(Attention<W>("attn_decode", isa),
                  cache.DecodeParams(qkv, slots, positions, &out, 2), 1);
        for (size_t row = 0; row < 2; ++row) {
          const auto slot = static_cast<size_t>(slots[row]);
          const auto position = static_cast<size_t>(positions[row]);
          cache.CheckWritten(qkv.data() + row * cache.QkvWidth(), slot, position);
          const auto want = cache.Reference(qkv.data() + row * cache.QkvWidth(), slot, position);
          CHECK(RelativeError(out.data() + row * cache.OutWidth(), want) < 4e-6);
        }
        CHECK((out.IsIntact() && cache.k.IsIntact() && cache.v.IsIntact()));
        for (const size_t count : {2, 5, 16}) {
          Cache<W> again = before;
          Guarded<float> split(out.size());
          RunShares(Attention<W>("attn_decode", isa),
                    again.DecodeParams(qkv, slots, positions, &split, 2), count);
          CHECK((split.SameBits(out) && again.k.SameBits(cache.k) && again.v.SameBits(cache.v)));
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("attn_decode gives a row the same bits in any batch", W, Half, float) {
  Random random(2);
  for (const Isa isa : SupportedIsas()) {
    Cache<W> cache(&random, {9, 3, 64}, 300);
    const Cache<W> before = cache;
    const Guarded<int32_t> slots(std::vector<int32_t>{1, 2, 0});
    const Guarded<int32_t> positions(std::vector<int32_t>{280, 3, 77});
    const Guarded<float> qkv(random.Floats(3 * cache.QkvWidth()));
    Guarded<float> all(3 * cache.OutWidth());
    RunShares(Attention<W>("attn_decode", isa), cache.DecodeParams(qkv, slots, positions, &all, 3),
              4);
    for (size_t row = 0; row < 3; ++row) {
      Cache<W> fresh = before;
      Guarded<float> one(cache.OutWidth());
      auto params = fresh.DecodeParams(qkv, slots, positions, &one, 1);
      params.qkv.offset += row * cache.QkvWidth();
      params.slots.offset += row;
      params.positions.offset += row;
      RunShares(Attention<W>("attn_decode", isa), params, 1);
      CHECK(std::memcmp(one.data(), all.data() + row * one.size(), one.size() * 4) == 0);
      CHECK(fresh.CountForeignWrites(before, static_cast<size_t>(slots[row]),
                                     static_cast<size_t>(positions[row]), 1) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("kv_write and attn_prefill agree with the reference", W, Half, float) {
  Random random(3);
  const std::vector<std::pair<size_t, size_t>> chunks = {{0, 1},  {0, 33},  {5, 7},
                                                         {63, 2}, {64, 64}, {100, 70}};
  for (const Isa isa : SupportedIsas()) {
    for (const Heads heads : kHeads) {
      for (const auto& [start, rows] : chunks) {
        CAPTURE(heads.num_heads);
        CAPTURE(heads.head_dim);
        CAPTURE(start);
        CAPTURE(rows);
        constexpr size_t kSlot = 1;
        Cache<W> cache(&random, heads, 200);
        const Cache<W> before = cache;
        const Guarded<float> qkv(random.Floats(rows * cache.QkvWidth(), 2.0f));
        for (const size_t count : {1, 4}) {
          RunShares(Attention<W>("kv_write", isa), cache.WriteParams(qkv, kSlot, start, rows),
                    count);
        }
        CHECK(cache.CountForeignWrites(before, kSlot, start, rows) == 0);
        Guarded<float> out(rows * cache.OutWidth());
        RunShares(Attention<W>("attn_prefill", isa),
                  cache.PrefillParams(qkv, &out, kSlot, start, rows), 1);
        for (size_t row = 0; row < rows; ++row) {
          const float* qkv_row = qkv.data() + row * cache.QkvWidth();
          cache.CheckWritten(qkv_row, kSlot, start + row);
          const auto want = cache.Reference(qkv_row, kSlot, start + row);
          REQUIRE(RelativeError(out.data() + row * cache.OutWidth(), want) < 4e-6);
        }
        CHECK((out.IsIntact() && cache.k.IsIntact() && cache.v.IsIntact()));
        for (const size_t count : {2, 3, 40}) {
          Guarded<float> split(out.size());
          RunShares(Attention<W>("attn_prefill", isa),
                    cache.PrefillParams(qkv, &split, kSlot, start, rows), count);
          CHECK(split.SameBits(out));
        }
      }
    }
  }
}

// A prompt has the same bits whole and in chunks, and what other positions hold does not matter.
TEST_CASE_TEMPLATE("attn_prefill does not depend on the chunking", W, Half, float) {
  constexpr size_t kRows = 150, kSlot = 2;
  Random random(4);
  for (const Isa isa : SupportedIsas()) {
    for (const Heads heads : {Heads{9, 3, 64}, Heads{4, 1, 24}}) {
      Cache<W> cache(&random, heads, 160);
      const Guarded<float> qkv(random.Floats(kRows * cache.QkvWidth(), 3.0f));
      RunShares(Attention<W>("kv_write", isa), cache.WriteParams(qkv, kSlot, 0, kRows), 1);
      Guarded<float> whole(kRows * cache.OutWidth());
      RunShares(Attention<W>("attn_prefill", isa),
                cache.PrefillParams(qkv, &whole, kSlot, 0, kRows), 3);
      for (const size_t chunk : {1, 32, 47, 64}) {
        Cache<W> other(&random, heads, 160);
        other.rope = cache.rope;
        for (size_t i = 0; i < other.v.size(); ++i) FromFloat(NAN, &other.v[i]);
        Guarded<float> parts(whole.size());
        for (size_t start = 0; start < kRows; start += chunk) {
          const size_t rows = std::min(chunk, kRows - start);
          auto write = other.WriteParams(qkv, kSlot, start, rows);
          write.qkv.offset += start * cache.QkvWidth();
          RunShares(Attention<W>("kv_write", isa), write, 2);
          auto params = other.PrefillParams(qkv, &parts, kSlot, start, rows);
          params.qkv.offset += start * cache.QkvWidth();
          params.out.offset += start * cache.OutWidth();
          RunShares(Attention<W>("attn_prefill", isa), params, 2);
        }
        CHECK(parts.SameBits(whole));
      }
    }
  }
}

TEST_CASE("attention shares run at once") {
  Random random(9);
  for (const Isa isa : SupportedIsas()) {
    Cache<Half> one(&random, {6, 3, 16}, 80);
    Cache<Half> many = one;
    const Guarded<int32_t> slots(std::vector<int32_t>{1, 0}),
        positions(std::vector<int32_t>{70, 9});
    const Guarded<float> qkv(random.Floats(70 * one.QkvWidth()));
    Guarded<float> out(70 * one.OutWidth()), split(70 * one.OutWidth());
    const auto run = [&](Cache<Half>& cache, Guarded<float>* y, auto&& runs) {
      runs("kv_write", cache.WriteParams(qkv, 1, 0, 70));
      runs("attn_prefill", cache.PrefillParams(qkv, y, 1, 0, 70));
      runs("attn_decode", cache.DecodeParams(qkv, slots, positions, y, 2));
    };
    run(one, &out, [&](auto name, auto p) { RunShares(Attention<Half>(name, isa), p, 1); });
    run(many, &split, [&](auto name, auto p) { RunAtOnce(Attention<Half>(name, isa), p, 4); });
    CHECK((split.SameBits(out) && many.k.SameBits(one.k) && many.v.SameBits(one.v)));
  }
}

TEST_CASE_TEMPLATE("attention survives scores that are far apart", W, Half, float) {
  Random random(5);
  for (const Isa isa : SupportedIsas()) {
    for (const float magnitude : {60.0f, 1e-6f}) {
      Cache<W> cache(&random, {6, 2, 32}, 400, magnitude);
      const Guarded<int32_t> slots(std::vector<int32_t>{0});
      const Guarded<int32_t> positions(std::vector<int32_t>{399});
      const Guarded<float> qkv(random.Floats(cache.QkvWidth(), magnitude));
      Guarded<float> decoded(cache.OutWidth()), prefilled(cache.OutWidth());
      RunShares(Attention<W>("attn_decode", isa),
                cache.DecodeParams(qkv, slots, positions, &decoded, 1), 2);
      RunShares(Attention<W>("attn_prefill", isa), cache.PrefillParams(qkv, &prefilled, 0, 399, 1),
                2);
      const auto want = cache.Reference(qkv.data(), 0, 399);
      const double bound = magnitude > 1 ? 3e-3 : 1e-5;  // scores up to 1e5 carry 7 digits
      CHECK(RelativeError(decoded.data(), want) < bound);
      CHECK(RelativeError(prefilled.data(), want) < bound);
    }
  }
}

TEST_CASE_TEMPLATE("attention over a long context", W, Half, float) {
  Random random(6);
  for (const Isa isa : SupportedIsas()) {
    constexpr size_t kLast = 8999;
    Cache<W> cache(&random, {3, 1, 64}, kLast + 1);
    const Guarded<int32_t> slots(std::vector<int32_t>{1});
    const Guarded<int32_t> positions(std::vector<int32_t>{kLast});
    const Guarded<float> qkv(random.Floats(cache.QkvWidth(), 4.0f));
    Guarded<float> decoded(cache.OutWidth()), prefilled(cache.OutWidth());
    RunShares(Attention<W>("attn_decode", isa),
              cache.DecodeParams(qkv, slots, positions, &decoded, 1), 1);
    RunShares(Attention<W>("attn_prefill", isa), cache.PrefillParams(qkv, &prefilled, 1, kLast, 1),
              1);
    const auto want = cache.Reference(qkv.data(), 1, kLast);
    CHECK(RelativeError(decoded.data(), want) < 2e-5);
    CHECK(RelativeError(prefilled.data(), want) < 2e-5);
  }
}

TEST_CASE_TEMPLATE("attention tolerates zero rows", W, Half, float) {
  Random random(7);
  for (const Isa isa : SupportedIsas()) {
    Cache<W> cache(&random, {3, 1, 16}, 8);
    const Cache<W> before = cache;
    const Guarded<int32_t> none(std::vector<int32_t>{-1});
    const Guarded<float> qkv(cache.QkvWidth());
    Guarded<float> out(cache.OutWidth());
    const Guarded<float> untouched = out;
    RunShares(Attention<W>("kv_write", isa), cache.WriteParams(qkv, 0, 3, 0), 2);
    RunShares(Attention<W>("attn_prefill", isa), cache.PrefillParams(qkv, &out, 0, 3, 0), 2);
    RunShares(Attention<W>("attn_decode", isa), cache.DecodeParams(qkv, none, none, &out, 0), 2);
    CHECK((out.SameBits(untouched) && cache.k.SameBits(before.k) && cache.v.SameBits(before.v)));
  }
}

}  // namespace
}  // namespace pyvlm::kernels
