#include "csrc/engine/iree_runner.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "csrc/iree/entry_points.h"

namespace pyvlm {
namespace {

constexpr auto kF32 = IREE_HAL_ELEMENT_TYPE_FLOAT_32;
constexpr auto kI32 = IREE_HAL_ELEMENT_TYPE_INT_32;
constexpr double kImportCostUs = 50;
constexpr int kMeasuredChunk = 64;

[[noreturn]] void Fail(const std::string& message) {
  throw Error(ErrorCode::kEngineFailed, message);
}

template <typename Work>
double MeasureUs(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

// The narrowest function that takes `size` rows and attends to `context` positions.
const EntryPoint& Choose(const std::vector<EntryPoint>& entries, int64_t size, int64_t context) {
  const EntryPoint* best = nullptr;
  for (const EntryPoint& entry : entries) {
    if (entry.size < size || entry.context < context) continue;
    if (best == nullptr ||
        std::pair(entry.size, entry.context) < std::pair(best->size, best->context)) {
      best = &entry;
    }
  }
  if (best == nullptr) {
    Fail("no compiled function takes " + std::to_string(size) + " rows at " +
         std::to_string(context) + " positions");
  }
  return *best;
}

// Widest call that some function takes at any position.
int MaxSize(const std::vector<EntryPoint>& entries, int64_t capacity) {
  int64_t size = 0;
  for (const EntryPoint& entry : entries) {
    if (entry.context == capacity) size = std::max(size, entry.size);
  }
  if (size == 0) {
    throw Error(ErrorCode::kProgramMismatch, "no function attends to the whole capacity");
  }
  return static_cast<int>(size);
}

// Rows on the device. The base, and with it the program, goes last.
class DeviceRows : public ImageRows {
 public:
  DeviceRows(std::shared_ptr<const Program> program, int hidden_size, int num_rows, BufferView view)
      : ImageRows(std::move(program), num_rows, hidden_size, ByteLength(BufferOf(view))),
        view_(std::move(view)) {}

  const BufferView& view() const { return view_; }

 private:
  const BufferView view_;
};

RunnerInfo MakeInfo(const ModelSpec& spec) {
  RunnerInfo info;
  info.vocab_size = static_cast<int>(spec.vocab_size);
  info.hidden_size = static_cast<int>(spec.hidden_size);
  info.num_slots = static_cast<int>(spec.num_slots);
  info.capacity = static_cast<int>(spec.capacity);
  info.max_chunk = MaxSize(spec.prefill, spec.capacity);
  info.max_decode_batch = MaxSize(spec.decode, spec.capacity);
  info.costs.import_rows = kImportCostUs;
  if (spec.vision) {
    info.vision = VisionInfo{
        .num_patches = static_cast<int>(spec.vision->num_patches),
        .grid = static_cast<int>(spec.vision->grid),
        .patch_dim = static_cast<int>(spec.vision->patch_dim),
        .rows_per_tile = static_cast<int>(spec.vision->rows_per_tile),
        .num_stages = static_cast<int>(spec.vision->num_block_groups) + 2,
    };
  }
  return info;
}

}  // namespace

IreeRunner::IreeRunner(std::shared_ptr<Program> program)
    : program_(std::move(program)), spec_(program_->spec()), info_(MakeInfo(spec_)) {
  program_->RequireOwnProcess();
  info_.model = program_;
  AllocateCache();
  const Buffer none = Allocate(device(), spec_.hidden_size * 4);
  FillZero(device(), none);
  no_rows_ = MakeView(none, kF32, {1, spec_.hidden_size});
  MeasureText();
  if (spec_.vision) MeasureVision();
  FillZero(device(), BufferOf(k_));
  FillZero(device(), BufferOf(v_));
}

void IreeRunner::AllocateCache() {
  const auto type = spec_.kv_type == FloatType::kF16 ? IREE_HAL_ELEMENT_TYPE_FLOAT_16
                                                     : IREE_HAL_ELEMENT_TYPE_FLOAT_32;
  for (BufferView* view : {&k_, &v_}) {
    *view = MakeView(
        Allocate(device(), spec_.kv_bytes()), type,
        {spec_.num_layers, spec_.num_slots, spec_.num_kv_heads, spec_.capacity, spec_.head_dim});
  }
}

// --- costs ----------------------------------------------------------------------------------

// Each call is made once, to bring weights and transient memory in, and timed the second time.
void IreeRunner::MeasureText() {
  const std::vector<std::int32_t> tokens(
      static_cast<size_t>(std::min(kMeasuredChunk, info_.max_chunk)), 0);
  const std::vector<std::int32_t> row_index(tokens.size(), -1);
  auto prefill = [&](size_t count) {
    PrefillCall call;
    call.tokens = std::span(tokens).first(count);
    call.row_index = std::span(row_index).first(count);
    return MeasureUs([&] { Prefill(call); });
  };
  prefill(1);
  const double one = prefill(1);
  RunnerCosts& costs = info_.costs;
  if (tokens.size() > 1) {
    prefill(tokens.size());
    const double all = prefill(tokens.size());
    costs.prefill_token = std::max(0.0, (all - one) / static_cast<double>(tokens.size() - 1));
  }
  costs.prefill_call = std::max(0.0, one - costs.prefill_token);
  std::vector<DecodeRow> rows(static_cast<size_t>(info_.max_decode_batch));
  for (size_t i = 0; i < rows.size(); ++i) rows[i].slot = static_cast<SlotId>(i);
  Decode(rows);
  costs.decode_call = MeasureUs([&] { Decode(rows); });
}

void IreeRunner::MeasureVision() {
  const VisionInfo& vision = *info_.vision;
  const std::vector<float> patches(static_cast<size_t>(vision.num_patches) *
                                   static_cast<size_t>(vision.patch_dim));
  const std::int32_t valid[] = {vision.grid, vision.grid};
  const ImageInput input =
      ImageInput::Pixels(patches.data(), valid, 1, vision.num_patches, vision.patch_dim);
  Image image;
  image.num_rows = vision.rows_per_tile;
  image.rows = MakeView(Allocate(device(), vision.rows_per_tile * spec_.hidden_size * 4), kF32,
                        {vision.rows_per_tile, spec_.hidden_size});
  auto measure = [&](int stage) {
    RunStage(image, input, 0, stage);
    return MeasureUs([&] { RunStage(image, input, 0, stage); });
  };
  const int last = vision.num_stages - 1;
  std::vector<double>& stages = info_.costs.encode_stage;
  stages.push_back(measure(0));
  const double group = measure(1);  // the groups are alike
  for (int stage = 1; stage < last; ++stage) stages.push_back(group);
  stages.push_back(measure(last));
}

// --- inputs ---------------------------------------------------------------------------------

// Borrowed host memory as a tensor: in place if the program can read it there (native kernels take
// any alignment of the element, generated code wants kBufferAlignment), else a copy on the device.
BufferView IreeRunner::HostInput(const void* data, iree_hal_element_type_t type,
                                 std::initializer_list<int64_t> shape) const {
  int64_t bytes = ElementBytes(type);
  for (int64_t dim : shape) bytes *= dim;
  const bool is_aligned = reinterpret_cast<uintptr_t>(data) % kBufferAlignment == 0;
  if (is_aligned || program_->has_native_kernels()) {
    return MakeView(Import(device(), data, bytes, nullptr, true), type, shape);
  }
  Buffer buffer = Allocate(device(), bytes);
  Write(device(), buffer, data, bytes);
  return MakeView(buffer, type, shape);
}

BufferView IreeRunner::IntInput(std::span<const std::int32_t> values) const {
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  Buffer buffer = Allocate(device(), bytes);
  Write(device(), buffer, values.data(), bytes);
  return MakeView(buffer, kI32, {static_cast<int64_t>(values.size())});
}

std::vector<Value> IreeRunner::Invoke(const std::string& function,
                                      const std::vector<Value>& arguments) {
  return program_->Invoke(program_->Find(function), arguments);
}

// --- images ---------------------------------------------------------------------------------

IreeRunner::Image& IreeRunner::FindOrStart(const EncodeCall& call) {
  const VisionInfo& vision = *info_.vision;
  const ImageInput& input = *call.input;
  if (call.tile == 0 && call.stage == 0) {
    if (input.num_patches != vision.num_patches || input.patch_dim != vision.patch_dim ||
        input.num_tiles * vision.rows_per_tile != call.num_rows ||
        input.valid.size() != 2 * static_cast<size_t>(input.num_tiles)) {
      Fail("the pixels of image " + std::to_string(call.key.image) + " do not fit the model");
    }
    Image image;
    image.num_rows = call.num_rows;
    image.rows = MakeView(Allocate(device(), call.num_rows * spec_.hidden_size * 4), kF32,
                          {call.num_rows, spec_.hidden_size});
    return images_[call.key] = std::move(image);
  }
  auto found = images_.find(call.key);
  if (found == images_.end() || found->second.tile != call.tile ||
      found->second.stage != call.stage || call.tile >= input.num_tiles) {
    Fail("encoder stages of image " + std::to_string(call.key.image) + " are out of order");
  }
  return found->second;
}

void IreeRunner::Encode(const EncodeCall& call) {
  logits_.Reset();
  if (!info_.vision) Fail("the model has no vision tower");
  Image& image = FindOrStart(call);
  RunStage(image, *call.input, call.tile, call.stage);
  if (++image.stage < info_.vision->num_stages) return;
  image.stage = 0;
  image.hidden.Reset();
  image.valid.Reset();
  image.is_complete = ++image.tile == call.input->num_tiles;
}

void IreeRunner::RunStage(Image& image, const ImageInput& input, int tile, int stage) {
  const VisionInfo& vision = *info_.vision;
  if (stage == 0) {
    const size_t index = static_cast<size_t>(tile);
    const size_t tile_size =
        static_cast<size_t>(vision.num_patches) * static_cast<size_t>(vision.patch_dim);
    const float* patches = static_cast<const float*>(input.data) + index * tile_size;
    image.valid = IntInput(std::span(input.valid).subspan(2 * index, 2));
    image.hidden =
        Invoke("vision_embed",
               {Value::Tensor(HostInput(patches, kF32, {vision.num_patches, vision.patch_dim})),
                Value::Tensor(image.valid)})[0]
            .view;
  } else if (stage < vision.num_stages - 1) {
    image.hidden = Invoke(VisionBlocksName(stage - 1),
                          {Value::Tensor(image.hidden), Value::Tensor(image.valid)})[0]
                       .view;
  } else {
    image.rows = Invoke("vision_project", {Value::Tensor(image.hidden), Value::Tensor(image.rows),
                                           Value::Integer(tile)})[0]
                     .view;
  }
}

void IreeRunner::ImportRows(ImageKey key, const ImageInput& input) {
  logits_.Reset();
  if (input.hidden_size != spec_.hidden_size || input.num_rows <= 0) {
    Fail("the rows of image " + std::to_string(key.image) + " do not fit the model");
  }
  Image image;
  image.num_rows = static_cast<int>(input.num_rows);
  image.rows = ImportedRows(input);
  image.is_complete = true;
  images_[key] = std::move(image);
}

BufferView IreeRunner::ImportedRows(const ImageInput& input) {
  if (input.kind == ImageInput::Kind::cached) {
    const auto* rows = dynamic_cast<const DeviceRows*>(input.rows.get());
    if (rows == nullptr || rows->model() != info_.model) Fail("cached rows are of another model");
    return rows->view();
  }
  if (input.dtype == DType::f32) {
    return HostInput(input.data, kF32, {input.num_rows, input.hidden_size});
  }
  const BufferView half =
      HostInput(input.data, IREE_HAL_ELEMENT_TYPE_FLOAT_16, {input.num_rows, input.hidden_size});
  return Invoke("rows_from_f16", {Value::Tensor(half)})[0].view;
}

std::shared_ptr<const ImageRows> IreeRunner::ShareRows(ImageKey key) noexcept try {
  auto found = images_.find(key);
  if (found == images_.end() || !found->second.is_complete) return nullptr;
  return MakeSharedUnlessForked<const DeviceRows>(program_, info_.hidden_size,
                                                  found->second.num_rows, found->second.rows);
} catch (const std::bad_alloc&) {
  return nullptr;
}

void IreeRunner::ReleaseRows(ImageKey key) noexcept { images_.erase(key); }

const void* IreeRunner::RowsAddress(ImageKey key) const {
  auto found = images_.find(key);
  if (found == images_.end()) return nullptr;
  return HostAddress(BufferOf(found->second.rows));
}

// --- text -----------------------------------------------------------------------------------

// A function that returns other buffers than it was given copies the cache in every call. At load
// this finds it for the functions that are measured, later for those that no measurement calls.
void IreeRunner::CheckInPlace(const std::string& function, const BufferView& k,
                              const BufferView& v) const {
  const auto is_same = [](const BufferView& before, const BufferView& after) {
    const void* address = HostAddress(BufferOf(before));
    return address == nullptr || address == HostAddress(BufferOf(after));
  };
  if (is_same(k_, k) && is_same(v_, v)) return;
  throw Error(ErrorCode::kProgramMismatch,
              function + " does not update its cache in place; compile the program again");
}

// Runs a function whose last arguments and results are the cache. If it throws, the cache is the
// one before the call: a slot that the call wrote to has undefined rows from its first position on.
std::span<const float> IreeRunner::CallWithCache(const std::string& function,
                                                 std::vector<Value> arguments, int first_row,
                                                 int num_rows, bool wants_logits) {
  logits_.Reset();
  arguments.push_back(Value::Tensor(k_));
  arguments.push_back(Value::Tensor(v_));
  std::vector<Value> results = Invoke(function, arguments);
  CheckInPlace(function, results[1].view, results[2].view);
  k_ = std::move(results[1].view);
  v_ = std::move(results[2].view);
  if (!wants_logits) return {};
  logits_ = HostView(device(), BufferOf(results[0].view));
  const size_t width = static_cast<size_t>(info_.vocab_size);
  const std::span<const float> all(static_cast<const float*>(logits_.data()),
                                   static_cast<size_t>(logits_.bytes()) / sizeof(float));
  const size_t begin = static_cast<size_t>(first_row) * width;
  const size_t size = static_cast<size_t>(num_rows) * width;
  if (begin + size > all.size()) Fail(function + " returned too few logits");
  return all.subspan(begin, size);
}

// The compiled code trusts its operands: an index out of range would reach other slots.
void IreeRunner::CheckPrefill(const PrefillCall& call) const {
  const auto count = static_cast<int64_t>(call.tokens.size());
  if (call.slot < 0 || call.slot >= info_.num_slots || call.start < 0 || count == 0 ||
      count > info_.max_chunk || call.start + count > info_.capacity ||
      call.row_index.size() != call.tokens.size()) {
    Fail("prefill of " + std::to_string(count) + " positions at " + std::to_string(call.start) +
         " of slot " + std::to_string(call.slot) + " is out of range");
  }
  const int64_t num_rows = call.rows ? images_.at(*call.rows).num_rows : 0;
  for (size_t i = 0; i < call.tokens.size(); ++i) {
    const bool is_text = call.row_index[i] < 0;
    if (is_text ? call.tokens[i] < 0 || call.tokens[i] >= info_.vocab_size
                : call.row_index[i] >= num_rows) {
      Fail("position " + std::to_string(call.start + static_cast<int64_t>(i)) +
           " has an id or a row out of range");
    }
  }
}

const BufferView& IreeRunner::RowsFor(const PrefillCall& call) const {
  if (!call.rows) return no_rows_;
  auto found = images_.find(*call.rows);
  if (found == images_.end() || !found->second.is_complete) {
    Fail("the rows of image " + std::to_string(call.rows->image) + " are not ready");
  }
  return found->second.rows;
}

std::span<const float> IreeRunner::Prefill(const PrefillCall& call) {
  const BufferView& rows = RowsFor(call);
  CheckPrefill(call);
  const auto count = static_cast<int64_t>(call.tokens.size());
  const EntryPoint& entry = Choose(spec_.prefill, count, call.start + count);
  std::vector<std::int32_t> tokens(call.tokens.begin(), call.tokens.end());
  std::vector<std::int32_t> row_index(call.row_index.begin(), call.row_index.end());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (row_index[i] >= 0) tokens[i] = 0;  // unused
  }
  tokens.resize(static_cast<size_t>(entry.size), 0);
  row_index.resize(static_cast<size_t>(entry.size), -1);
  const int last = spec_.all_logits ? static_cast<int>(count) - 1 : 0;
  return CallWithCache(
      entry.function,
      {Value::Tensor(IntInput(tokens)), Value::Tensor(IntInput(row_index)), Value::Tensor(rows),
       Value::Integer(call.slot), Value::Integer(call.start), Value::Integer(count)},
      last, 1, call.wants_logits);
}

void IreeRunner::CheckDecode(std::span<const DecodeRow> rows) const {
  if (rows.empty() || rows.size() > static_cast<size_t>(info_.max_decode_batch)) {
    Fail("decode of " + std::to_string(rows.size()) + " rows is out of range");
  }
  for (const DecodeRow& row : rows) {
    if (row.slot < 0 || row.slot >= info_.num_slots || row.position < 0 ||
        row.position >= info_.capacity || row.token < 0 || row.token >= info_.vocab_size) {
      Fail("decode of token " + std::to_string(row.token) + " at " + std::to_string(row.position) +
           " of slot " + std::to_string(row.slot) + " is out of range");
    }
  }
}

std::span<const float> IreeRunner::Decode(std::span<const DecodeRow> rows) {
  CheckDecode(rows);
  int64_t context = 0;
  for (const DecodeRow& row : rows) context = std::max<int64_t>(context, row.position + 1);
  const auto count = static_cast<int64_t>(rows.size());
  const EntryPoint& entry = Choose(spec_.decode, count, context);
  // Padding repeats the first row: it writes the same values to the same place.
  const auto size = static_cast<size_t>(entry.size);
  std::vector<std::int32_t> tokens(size, rows[0].token);
  std::vector<std::int32_t> slots(size, rows[0].slot);
  std::vector<std::int32_t> positions(size, rows[0].position);
  for (size_t i = 0; i < rows.size(); ++i) {
    tokens[i] = rows[i].token;
    slots[i] = rows[i].slot;
    positions[i] = rows[i].position;
  }
  return CallWithCache(entry.function,
                       {Value::Tensor(IntInput(tokens)), Value::Tensor(IntInput(slots)),
                        Value::Tensor(IntInput(positions)), Value::Integer(count)},
                       0, static_cast<int>(count), true);
}

}  // namespace pyvlm
