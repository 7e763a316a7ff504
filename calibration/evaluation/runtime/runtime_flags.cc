#include "calibration/evaluation/runtime/runtime_flags.h"

#include <charconv>
#include <functional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"

namespace eta {

void RegisterBackend(CLI::App& command, BackendOptions& backend) {
  command.add_option("--backend", backend.name, "Backend that computes")
      ->check(CLI::IsMember(BackendNames()))
      ->capture_default_str();
  command
      .add_option(
          "--threads", backend.num_threads,
          "Threads of the cpu backend; 0: one per CPU that this process may use, by its mask of "
          "CPUs and by the CPU quota of its control groups")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      .add_flag("--amx,!--no-amx", backend.amx,
                "The cpu backend's prefill uses AMX where the machine has it")
      ->default_str("true");
  command.add_option("--device", backend.device, "Device of the cuda backend")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
  const std::function<void(const std::string&)> set_compute = [&backend](const std::string& name) {
    backend.compute = ParseDType(name).value_or(backend.compute);
  };
  command.add_option_function("--compute", set_compute, "Type of the cuda backend's products")
      ->check(CLI::IsMember({"bfloat16", "float16", "float32"}))
      ->default_str("bfloat16");
}

std::string CheckReal(const std::string& text, double low, double high) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  // The condition is written so that NaN fails.
  if (whole && value >= low && value <= high) return "";
  return absl::StrCat("must be a number from ", low, " to ", high);
}

void RuntimeFlags::Register(CLI::App& command) {
  command.add_option("--model", model_dir, "GGUF file or folder of the checkpoint")->required();
  RegisterBackend(command, backend);
  const std::function<void(const std::string&)> set_kv_dtype = [this](const std::string& name) {
    kv_dtype = ParseDType(name).value_or(kv_dtype);
  };
  command
      .add_option_function("--kv_dtype", set_kv_dtype,
                           "Type of the KV cache; float8_e4m3 not with backend cpu")
      ->check(CLI::IsMember({"float32", "float16", "bfloat16", "float8_e4m3"}))
      ->default_str("float16");
  const std::function<void(const std::string&)> set_index = [this](const std::string& name) {
    index = name == "outlier" ? IndexKind::kOutlier : IndexKind::kMoment;
  };
  command.add_option_function("--index", set_index, "Kind of block records [the model's]")
      ->check(CLI::IsMember({"moment", "outlier"}));
  const std::function<void(const std::string&)> set_index_dtype = [this](const std::string& name) {
    index_dtype = ParseDType(name);
  };
  command
      .add_option_function("--index_dtype", set_index_dtype,
                           "Type of block records [float16; of outlier records int8]; int8 moment "
                           "records not with backend cpu")
      ->check(CLI::IsMember({"float16", "int8"}));
  const std::function<void(const std::string&)> set_weights = [this](const std::string& name) {
    weights = ParseWeightFormat(name).value_or(weights);
  };
  command
      .add_option_function("--weights", set_weights,
                           "Weights as the model has them, or rounded to 8 or 4 bits where they "
                           "have more; unpacked makes numbers of blocks")
      ->check(CLI::IsMember({"native", "int8", "int4", "unpacked"}))
      ->default_str("native");
}

}  // namespace eta
