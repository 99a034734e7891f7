#include <array>

#include "csrc/kernels/kernel_testing.h"

namespace pyvlm::kernels {
namespace {

struct Heads {
  size_t num_heads, num_kv_heads, head_dim;
};

// Attention of one patch and head over the valid patches, in double.
std::vector<double> FullReference(const Guarded<float>& qkv, size_t patch, size_t head, size_t grid,
                                  size_t rows, size_t cols, const Heads& heads) {
  const size_t dim = heads.head_dim, width = heads.num_heads * dim;
  const float* q = qkv.data() + patch * 3 * width + head * dim;
  std::vector<double> out(dim), scores;
  std::vector<size_t> keys;
  for (size_t t = 0; t < grid * grid; ++t) {
    if (t / grid >= rows || t % grid >= cols) continue;
    const float* k = qkv.data() + t * 3 * width + width + head * dim;
    double score = 0;
    for (size_t d = 0; d < dim; ++d) score += static_cast<double>(q[d]) * k[d];
    keys.push_back(t);
    scores.push_back(score / std::sqrt(static_cast<double>(dim)));
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (size_t i = 0; i < keys.size(); ++i) {
    const float* v = qkv.data() + keys[i] * 3 * width + 2 * width + head * dim;
    for (size_t d = 0; d < dim; ++d) out[d] += scores[i] / sum * v[d];
  }
  return out;
}

TEST_CASE("attn_full agrees with the reference and masks padding") {
  Random random(8);
  const std::vector<Heads> shapes = {{2, 2, 64}, {3, 3, 32}, {1, 1, 8}, {2, 2, 72}};
  for (const Isa isa : SupportedIsas()) {
    for (const Heads heads : shapes) {
      for (const auto& [grid, rows, cols] : {std::array<size_t, 3>{1, 1, 1},
                                             {5, 5, 5},
                                             {8, 8, 8},
                                             {12, 12, 12},
                                             {12, 7, 9},
                                             {12, 1, 12},
                                             {12, 12, 1}}) {
        const size_t patches = grid * grid, width = heads.num_heads * heads.head_dim;
        Guarded<float> qkv(random.Floats(patches * 3 * width, 2.0f));
        const Guarded<int32_t> valid(
            std::vector<int32_t>{static_cast<int32_t>(rows), static_cast<int32_t>(cols)});
        const auto run = [&](size_t count) {
          Guarded<float> out(patches * width);
          RunShares(KernelOf("pyvlm_attn_full", isa),
                    AttnFullParams{qkv.input(),
                                   valid.input(),
                                   out.buffer(),
                                   patches,
                                   grid,
                                   heads.num_heads,
                                   heads.head_dim,
                                   BitsOf(1 / std::sqrt(static_cast<float>(heads.head_dim))),
                                   {}},
                    count);
          CHECK(out.IsIntact());
          return out;
        };
        const auto out = run(1);
        for (const size_t count : {2, 3, 25}) CHECK(run(count).SameBits(out));
        for (size_t i = 0; i < patches * heads.num_heads; ++i) {
          const size_t patch = i / heads.num_heads, head = i % heads.num_heads;
          const auto want = FullReference(qkv, patch, head, grid, rows, cols, heads);
          REQUIRE(RelativeError(out.data() + i * heads.head_dim, want) < 4e-6);
        }
        // Keys and values of padding are never used, not even times zero.
        for (size_t t = 0; t < patches; ++t) {
          if (t / grid < rows && t % grid < cols) continue;
          std::fill_n(qkv.data() + (t * 3 + 1) * width, 2 * width, NAN);
        }
        CHECK(run(2).SameBits(out));
      }
    }
  }
}

}  // namespace
}  // namespace pyvlm::kernels
