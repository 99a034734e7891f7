// pyvlm._core_testing: runners for tests, to be given to pyvlm._core.Engine. Not in the wheel.
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/bindings/errors.h"
#include "csrc/bindings/prepared.h"
#include "csrc/testing/fake_runner.h"
#include "csrc/testing/fault_runner.h"
#include "csrc/testing/rows_probe.h"

namespace py = pybind11;

namespace pyvlm::bindings {
namespace {

constexpr char kFaultDoc[] = R"(One kind of calls to disturb.

call: "encode", "import_rows", "prefill" or "decode". action: "fail" throws `code` before the call
("device_unavailable" stops the engine, every other code ends the sequences of the call), "delay"
sleeps `delay_ms` before it, "corrupt" turns its logits into NaN, the pixels of an encode call into
zeros. Calls of that kind (prefill and decode: of `slot` alone if it is given) are counted from 1,
from the moment when the fault was given to a runner; those numbered first .. first + count - 1 are
struck. A decode call that fails for several rows is repeated row by row: with count 1 nobody
notices.)";

constexpr char kFaultRunnerDoc[] =
    R"(A Runner that disturbs the calls of another one, of IreeRunner for instance.

    runner = _core_testing.FaultRunner(_core.IreeRunner(program), [Fault("prefill", first=2)])
    engine = _core.Engine(runner, _core.EngineOptions())

Whatever takes a Runner takes it: an engine over the real model, or the server over that engine.
`add` arms another fault at any time, from any thread; `num_strikes` counts the calls that were
struck.)";

template <typename Value>
Value Choose(const std::string& name, const std::vector<std::pair<const char*, Value>>& choices) {
  for (const auto& [text, value] : choices) {
    if (name == text) return value;
  }
  throw py::value_error("unknown name " + name);
}

Fault MakeFault(const std::string& call, const std::string& action, std::int64_t first,
                std::int64_t count, std::optional<SlotId> slot, const std::string& code,
                int delay_ms) {
  const std::optional<ErrorCode> error_code = ErrorCodeFromName(code);
  if (!error_code) throw py::value_error("unknown error code " + code);
  return {.call = Choose<FaultCall>(call, {{"encode", FaultCall::encode},
                                           {"import_rows", FaultCall::import_rows},
                                           {"prefill", FaultCall::prefill},
                                           {"decode", FaultCall::decode}}),
          .action = Choose<FaultAction>(action, {{"fail", FaultAction::fail},
                                                 {"delay", FaultAction::delay},
                                                 {"corrupt", FaultAction::corrupt}}),
          .first = first,
          .count = count,
          .slot = slot,
          .code = *error_code,
          .delay_ms = delay_ms};
}

void BindFakeRunner(py::module_& module) {
  py::class_<FakeRunner, Runner, std::shared_ptr<FakeRunner>>(module, "FakeRunner")
      .def(py::init([](int num_slots, int capacity) {
             return std::make_shared<FakeRunner>(FakeRunner::SmallInfo(num_slots, capacity));
           }),
           py::arg("num_slots") = 2, py::arg("capacity") = 64)
      .def("pause", ByReference(&FakeRunner::Pause))
      .def("pause_at_decode", ByReference(&FakeRunner::PauseAtDecode))
      .def("resume", ByReference(&FakeRunner::Resume))
      .def("wait_until_blocked", ByReference(&FakeRunner::WaitUntilBlocked), py::arg("timeout_ms"),
           py::call_guard<py::gil_scoped_release>())
      .def(
          "greedy_tokens",
          [](const FakeRunner& self, const BoundPrefill& prefill, int num_tokens) {
            return FakeGreedyTokens(*prefill.native, self.info(), num_tokens);
          },
          py::arg("prepared"), py::arg("num_tokens"))
      .def_property_readonly("num_live_images", ByReference(&FakeRunner::num_live_images))
      .def_property_readonly("num_violations", ByReference(&FakeRunner::num_violations))
      .def_property_readonly("last_import", [](const FakeRunner& self) {
        return reinterpret_cast<std::uintptr_t>(self.last_import());
      });
}

void BindFaultRunner(py::module_& module) {
  const Fault defaults;
  py::class_<Fault>(module, "Fault", kFaultDoc)
      .def(py::init(&MakeFault), py::arg("call"), py::arg("action") = "fail", py::kw_only(),
           py::arg("first") = defaults.first, py::arg("count") = defaults.count,
           py::arg("slot") = defaults.slot, py::arg("code") = "engine_failed",
           py::arg("delay_ms") = defaults.delay_ms);
  py::class_<FaultRunner, Runner, std::shared_ptr<FaultRunner>>(module, "FaultRunner",
                                                                kFaultRunnerDoc)
      .def(py::init<std::shared_ptr<Runner>, std::vector<Fault>>(), py::arg("runner"),
           py::arg("faults") = std::vector<Fault>{})
      .def("add", ByReference(&FaultRunner::Add), py::arg("fault"))
      .def_property_readonly("num_strikes", ByReference(&FaultRunner::num_strikes));
}

void BindRowsProbe(py::module_& module) {
  py::class_<RowsProbe, Runner, std::shared_ptr<RowsProbe>>(module, "RowsProbe")
      .def(py::init<std::shared_ptr<IreeRunner>>(), py::arg("runner"))
      .def_property_readonly("last_rows", [](const RowsProbe& self) {
        return reinterpret_cast<std::uintptr_t>(self.last_rows());
      });
}

}  // namespace
}  // namespace pyvlm::bindings

PYBIND11_MODULE(_core_testing, module) {
  module.doc() = "Fake and faulty runners for tests of the engine.";
  py::module_::import("pyvlm._core");  // registers Runner and PreparedPrefill
  py::register_local_exception_translator(pyvlm::bindings::TranslateError);
  pyvlm::bindings::BindFakeRunner(module);
  pyvlm::bindings::BindFaultRunner(module);
  pyvlm::bindings::BindRowsProbe(module);
  pyvlm::bindings::RefuseUninitialised(module);
}
