// eta-eval export-gguf: a model, a folder or a GGUF file, as a GGUF file.

#include <cstdio>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/runtime/program.h"
#include "engine/base/status_macros.h"
#include "engine/model/gguf_writer/gguf_export.h"

namespace eta {
namespace {

const std::map<std::string, GgmlType> kTypes = {{"q8_0", GgmlType::kQ8_0},
                                                {"float16", GgmlType::kF16},
                                                {"bfloat16", GgmlType::kBF16},
                                                {"float32", GgmlType::kF32}};

struct ExportGgufCommand {
  std::string model;
  std::string output;
  std::string dtype = "q8_0";

  void Register(CLI::App& command) {
    command.add_option("MODEL", model, "The folder or GGUF file")->required();
    command
        .add_option("OUT", output,
                    "The file to write. It must be absent, and is there whole or not at all")
        ->required();
    command
        .add_option("--dtype", dtype,
                    "Type of the matrices; norms, biases, what predicts thresholds and the index "
                    "metric are float32")
        ->check(CLI::IsMember({"q8_0", "float16", "bfloat16", "float32"}))
        ->capture_default_str();
  }
  absl::Status Run() const {
    ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(model));
    ASSIGN_OR_RETURN(const auto written, ExportGguf(checkpoint, output, kTypes.at(dtype)));
    std::printf("%s: %lld tensors, %llu bytes, of files %s\n", output.c_str(),
                static_cast<long long>(written.num_tensors),
                static_cast<unsigned long long>(written.bytes),
                checkpoint.files_fingerprint().c_str());
    return absl::OkStatus();
  }
};

}  // namespace

void AddExportGgufCommand(CLI::App& app, absl::Status& status) {
  AddCommand<ExportGgufCommand>(
      app, status, "export-gguf",
      "Writes a model, a folder or a GGUF file, as a GGUF file, with gate, thresholds and index "
      "metric");
}

}  // namespace eta
