// eta-eval import: a model, from a GGUF file or a folder, as a folder in Hugging Face's layout.

#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/runtime/program.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/model/model_config.h"
#include "engine/model/weights/index_metric.h"

namespace eta {
namespace {

struct ImportCommand {
  std::string model;
  std::string output;
  std::string dtype = "native";

  void Register(CLI::App& command) {
    command.add_option("MODEL", model, "The GGUF file or folder")->required();
    command
        .add_option("OUT", output,
                    "The folder to write. It must be absent or empty, and is there whole or not at "
                    "all")
        ->required();
    command
        .add_option("--dtype", dtype,
                    "Type of the weights; native: as they are stored, and float32 for what a GGUF "
                    "file has quantised")
        ->check(CLI::IsMember({"native", "float32", "float16", "bfloat16"}))
        ->capture_default_str();
  }
  absl::Status Run() const {
    ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(model));
    ASSIGN_OR_RETURN(const auto config, ParseModelConfig(checkpoint.config_json()));
    RETURN_IF_ERROR(ValidateTensors(config, checkpoint.tensors()));
    if (checkpoint.index_metric() != nullptr) {
      RETURN_IF_ERROR(ValidateIndexMetric(config, *checkpoint.index_metric()));
    }
    RETURN_IF_ERROR(WriteCheckpoint(checkpoint, output, ParseDType(dtype)));
    std::printf("%s: %zu tensors of files %s\n", output.c_str(), checkpoint.tensors().size(),
                checkpoint.files_fingerprint().c_str());
    return absl::OkStatus();
  }
};

}  // namespace

void AddImportCommand(CLI::App& app, absl::Status& status) {
  AddCommand<ImportCommand>(
      app, status, "import",
      "Writes a model, a GGUF file or a folder, as a folder in Hugging Face's layout");
}

}  // namespace eta
