#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/integer.h"
#include "csrc/bindings/prepared.h"
#include "csrc/engine/prepared_prefill.h"
#include "csrc/engine/sampling_params.h"

namespace py = pybind11;

namespace pyvlm::bindings {
namespace {

using Ids = std::vector<std::int32_t>;

[[noreturn]] void RejectIds(const char* name, const std::string& what) {
  throw Error(ErrorCode::kInvalidParameter, std::string(name) + " " + what, name);
}

std::vector<std::int64_t> WideIds(const py::array& array, const char* name) {
  const char kind = array.dtype().kind();
  if (array.ndim() != 1 || (kind != 'i' && kind != 'u')) {
    RejectIds(name, "must be a one-dimensional array of integers");
  }
  const auto values = py::array_t<std::int64_t, py::array::forcecast>::ensure(array);
  if (!values) RejectIds(name, "cannot be read");
  const auto view = values.unchecked<1>();
  std::vector<std::int64_t> wide;
  for (py::ssize_t i = 0; i < view.shape(0); ++i) wide.push_back(view(i));
  return wide;
}

std::int64_t WideId(const py::handle& item, const char* name) {
  const std::optional<Integer> number = ToInteger(item);
  if (!number)
    RejectIds(name, "holds a " + std::string(Py_TYPE(item.ptr())->tp_name) + ", not an id");
  return Narrow<std::int64_t>(*number, name);
}

// Token ids from a 1-d integer array or a sequence of integers.
Ids ToIds(const py::object& object, const char* name) {
  std::vector<std::int64_t> wide;
  if (py::isinstance<py::array>(object)) {
    wide = WideIds(py::reinterpret_borrow<py::array>(object), name);
  } else if (!PySequence_Check(object.ptr()) || PyUnicode_Check(object.ptr()) ||
             PyBytes_Check(object.ptr())) {
    RejectIds(name, "must be a sequence of integers");
  } else {
    const auto sequence = py::reinterpret_borrow<py::sequence>(object);
    for (const py::handle item : sequence) wide.push_back(WideId(item, name));
  }
  Ids ids;
  ids.reserve(wide.size());
  for (const std::int64_t id : wide) {
    if (id < std::numeric_limits<std::int32_t>::min() ||
        id > std::numeric_limits<std::int32_t>::max()) {
      RejectIds(name, "holds " + std::to_string(id) + ", which is no token id");
    }
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

[[noreturn]] void RejectImage(ErrorCode code, const std::string& message) {
  throw Error(code, message, "images");
}

bool IsContiguous(const py::buffer_info& view) {
  py::ssize_t stride = view.itemsize;
  for (py::ssize_t axis = view.ndim; axis-- > 0;) {
    const auto index = static_cast<std::size_t>(axis);
    if (view.shape[index] > 1 && view.strides[index] != stride) return false;
    stride *= view.shape[index];
  }
  return true;
}

// The format character of a native, single-item buffer; '\0' for anything else.
char FormatOf(const py::buffer_info& view) {
  std::string format = view.format;
  if (!format.empty() && (format[0] == '<' || format[0] == '=' || format[0] == '@')) {
    format.erase(0, 1);
  }
  return format.size() == 1 ? format[0] : '\0';
}

py::buffer_info View(const py::buffer& buffer, py::ssize_t ndim, const char* name) {
  py::buffer_info view = buffer.request();
  if (view.ndim != ndim) {
    RejectImage(ErrorCode::kImageShape, std::string(name) + " must have " + std::to_string(ndim) +
                                            " dimensions, not " + std::to_string(view.ndim));
  }
  if (!IsContiguous(view)) {
    RejectImage(ErrorCode::kImageShape, std::string(name) + " must be C-contiguous");
  }
  if (view.itemsize <= 0)
    RejectImage(ErrorCode::kImageDtype, std::string(name) + " has no elements");
  if (reinterpret_cast<std::uintptr_t>(view.ptr) % static_cast<std::size_t>(view.itemsize) != 0) {
    RejectImage(ErrorCode::kInvalidParameter,
                std::string(name) + " must be aligned to its elements");
  }
  return view;
}

BoundImage MakePixels(const py::buffer& patches, const py::buffer& valid,
                      const py::bytes& cache_key) {
  py::buffer_info pixels = View(patches, 3, "patches");
  py::buffer_info sizes = View(valid, 2, "valid");
  if (FormatOf(pixels) != 'f') RejectImage(ErrorCode::kImageDtype, "patches must be float32");
  const char format = FormatOf(sizes);
  if (sizes.itemsize != 4 || (format != 'i' && format != 'l')) {
    RejectImage(ErrorCode::kImageDtype, "valid must be int32");
  }
  if (sizes.shape[0] != pixels.shape[0] || sizes.shape[1] != 2) {
    RejectImage(ErrorCode::kImageShape, "valid must be [tiles, 2] for the tiles of patches");
  }
  BoundImage image;
  image.input = ImageInput::Pixels(
      static_cast<const float*>(pixels.ptr),
      {static_cast<const std::int32_t*>(sizes.ptr), static_cast<std::size_t>(sizes.size)},
      pixels.shape[0], pixels.shape[1], pixels.shape[2]);
  image.input.cache_key = std::string(cache_key);
  auto buffers = std::make_shared<ImageBuffers>();
  buffers->views.push_back(std::move(pixels));
  image.buffers = std::move(buffers);
  return image;
}

BoundImage MakeEmbeddings(const py::buffer& rows) {
  py::buffer_info view = View(rows, 2, "rows");
  const char format = FormatOf(view);
  if (format != 'f' && format != 'e') {
    RejectImage(ErrorCode::kImageDtype, "rows must be float32 or float16");
  }
  BoundImage image;
  image.input = ImageInput::Embeddings(view.ptr, format == 'f' ? DType::f32 : DType::f16,
                                       view.shape[0], view.shape[1]);
  auto buffers = std::make_shared<ImageBuffers>();
  buffers->views.push_back(std::move(view));
  image.buffers = std::move(buffers);
  return image;
}

BoundPrefill MakePrefill(const py::object& logical_ids, std::vector<Segment> segments,
                         const std::vector<BoundImage>& images, SamplingParams sampling,
                         const std::optional<Integer>& max_new_tokens,
                         const py::object& stop_token_ids, std::optional<double> deadline_s,
                         Integer image_token_id) {
  BoundPrefill prefill;
  PreparedPrefill::Fields fields;
  fields.logical_ids = ToIds(logical_ids, "logical_ids");
  fields.segments = std::move(segments);
  for (const BoundImage& image : images) {
    fields.images.push_back(image.input);
    prefill.buffers.push_back(image.buffers);
  }
  fields.image_token_id = Narrow<std::int32_t>(image_token_id, "image_token_id");
  fields.sampling = std::move(sampling);
  fields.max_new_tokens = Narrow<std::int64_t>(max_new_tokens, "max_new_tokens");
  fields.stop_token_ids = ToIds(stop_token_ids, "stop_token_ids");
  fields.deadline_s = deadline_s;
  // The finiteness check reads every pixel. No Python object is touched.
  py::gil_scoped_release release;
  prefill.native = std::make_shared<const PreparedPrefill>(std::move(fields));
  return prefill;
}

SamplingParams MakeSampling(float temperature, Integer top_k, float top_p, float min_p,
                            float repetition_penalty, float presence_penalty,
                            float frequency_penalty,
                            const std::vector<std::pair<Integer, float>>& logit_bias,
                            const std::optional<Integer>& seed,
                            const std::optional<Integer>& num_logprobs) {
  SamplingParams params{.temperature = temperature,
                        .top_k = Narrow<int>(top_k, "top_k"),
                        .top_p = top_p,
                        .min_p = min_p,
                        .repetition_penalty = repetition_penalty,
                        .presence_penalty = presence_penalty,
                        .frequency_penalty = frequency_penalty,
                        .logit_bias = {},
                        .seed = Narrow<std::uint64_t>(seed, "seed"),
                        .num_logprobs = Narrow<int>(num_logprobs, "num_logprobs")};
  for (const auto& [id, bias] : logit_bias) {
    params.logit_bias.emplace_back(Narrow<std::int32_t>(id, "logit_bias"), bias);
  }
  params.Validate();
  return params;
}

void BindSampling(py::module_& module) {
  const SamplingParams defaults;
  py::class_<SamplingParams>(module, "SamplingParams")
      .def(py::init(&MakeSampling), py::kw_only(), py::arg("temperature") = defaults.temperature,
           py::arg("top_k") = defaults.top_k, py::arg("top_p") = defaults.top_p,
           py::arg("min_p") = defaults.min_p,
           py::arg("repetition_penalty") = defaults.repetition_penalty,
           py::arg("presence_penalty") = defaults.presence_penalty,
           py::arg("frequency_penalty") = defaults.frequency_penalty,
           py::arg("logit_bias") = defaults.logit_bias, py::arg("seed") = defaults.seed,
           py::arg("num_logprobs") = defaults.num_logprobs)
      .def_readonly("temperature", &SamplingParams::temperature)
      .def_readonly("top_k", &SamplingParams::top_k)
      .def_readonly("top_p", &SamplingParams::top_p)
      .def_readonly("min_p", &SamplingParams::min_p)
      .def_readonly("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_readonly("presence_penalty", &SamplingParams::presence_penalty)
      .def_readonly("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_readonly("logit_bias", &SamplingParams::logit_bias)
      .def_readonly("seed", &SamplingParams::seed)
      .def_readonly("num_logprobs", &SamplingParams::num_logprobs);
}

}  // namespace

void BindPrepared(py::module_& module) {
  BindSampling(module);
  py::class_<Segment>(module, "Segment")
      .def_static(
          "text",
          [](Integer start, Integer count) {
            return Segment::Text(Narrow<std::int64_t>(start, "start"),
                                 Narrow<std::int64_t>(count, "count"));
          },
          py::arg("start"), py::arg("count"))
      .def_static(
          "image",
          [](Integer index, const py::object& expanded_ids) {
            return Segment::Image(Narrow<std::int64_t>(index, "index"),
                                  ToIds(expanded_ids, "expanded_ids"));
          },
          py::arg("index"), py::arg("expanded_ids"));
  py::class_<BoundImage>(module, "ImageInput")
      .def_static("pixels", &MakePixels, py::arg("patches"), py::arg("valid"), py::kw_only(),
                  py::arg("cache_key") = py::bytes())
      .def_static("embeddings", &MakeEmbeddings, py::arg("rows"));
  py::class_<BoundPrefill>(module, "PreparedPrefill")
      .def(py::init(&MakePrefill), py::kw_only(), py::arg("logical_ids"), py::arg("segments"),
           py::arg("images"), py::arg("sampling"), py::arg("max_new_tokens"),
           py::arg("stop_token_ids"), py::arg("deadline_s") = py::none(),
           py::arg("image_token_id") = -1)
      .def_property_readonly("logical_ids",
                             [](const BoundPrefill& self) { return self.native->logical_ids(); })
      .def_property_readonly(
          "num_prompt_tokens",
          [](const BoundPrefill& self) { return self.native->num_prompt_tokens(); })
      .def_property_readonly("num_positions",
                             [](const BoundPrefill& self) { return self.native->num_positions(); })
      .def_property_readonly("num_images",
                             [](const BoundPrefill& self) { return self.native->num_images(); })
      .def_property_readonly(
          "max_new_tokens", [](const BoundPrefill& self) { return self.native->max_new_tokens(); });
}

}  // namespace pyvlm::bindings
