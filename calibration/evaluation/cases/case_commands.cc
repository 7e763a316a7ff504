// eta-eval kernel-case and score: run a case file and write its result.

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "calibration/evaluation/cases/comparison.h"
#include "calibration/evaluation/cases/kernel_case.h"
#include "calibration/evaluation/cases/score.h"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/runtime/runtime_flags.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"

namespace eta {
namespace {

struct CaseFlags {
  std::string case_file;
  std::string out_file;
  std::optional<double> tolerance;

  void Register(CLI::App& command) {
    command.add_option("--case", case_file, "Case to run: a safetensors file")->required();
    command.add_option("--out", out_file, "Safetensors file to write the result to")->required();
    command
        .add_option("--tolerance", tolerance,
                    "Compare the result with the tensors of the same names in the case: integers "
                    "must be equal, floating point must differ by this much at most; exit code 1 "
                    "if not")
        ->check([](const std::string& text) { return CheckReal(text, 0.0, 1e30); });
  }

  // Aborted if the result differs from the expected one.
  absl::Status Compare() const {
    if (!tolerance) return absl::OkStatus();
    ASSIGN_OR_RETURN(const Comparison comparison, CompareFiles(case_file, out_file, *tolerance));
    std::fputs(comparison.report.c_str(), stdout);
    if (comparison.equal) return absl::OkStatus();
    return absl::AbortedError("case: the result differs from its expectation");
  }
};

struct KernelCaseCommand {
  CaseFlags files;
  BackendOptions backend;
  bool round_records = false;

  absl::Status Run() const {
    ASSIGN_OR_RETURN(KernelCase kernel_case, ReadKernelCase(files.case_file));
    KvGeometry& geometry = kernel_case.geometry;
    if (round_records && geometry.index == IndexKind::kOutlier) geometry.index_dtype = DType::kInt8;
    ASSIGN_OR_RETURN(const std::unique_ptr<Backend> made, MakeBackend(backend));
    ASSIGN_OR_RETURN(const KernelResult result, RunKernelCase(kernel_case, *made));
    RETURN_IF_ERROR(WriteKernelResult(kernel_case, result, files.out_file));
    return files.Compare();
  }
};

struct ScoreCommand {
  CaseFlags files;
  RuntimeFlags runtime;

  absl::Status Run() const {
    ASSIGN_OR_RETURN(const ScoreCase score_case, ReadScoreCase(files.case_file));
    ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> loaded, Runtime::Load(runtime));
    const ModelConfig& config = loaded->config();
    ASSIGN_OR_RETURN(
        const std::unique_ptr<SequenceRunner> runner,
        loaded->MakeRunner(CaseGeometry(score_case, config, runtime.kv_dtype, runtime.index_dtype),
                           static_cast<int32_t>(score_case.tokens.size())));
    ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                     Tokenizer::Load(loaded->checkpoint().tokenizer_files(), config));
    ASSIGN_OR_RETURN(const ScoreResult result,
                     RunScore(score_case, *runner, tokenizer->special_ids()));
    RETURN_IF_ERROR(WriteScoreResult(result, config, files.out_file));
    return files.Compare();
  }
};

}  // namespace

void AddKernelCaseCommand(CLI::App& app, absl::Status& status) {
  CLI::App* sub = app.add_subcommand("kernel-case",
                                     "Runs one decode step of one layer through a backend's ops");
  auto command = std::make_shared<KernelCaseCommand>();
  command->files.Register(*sub);
  RegisterBackend(*sub, command->backend);
  sub->add_flag(
      "--round_records", command->round_records,
      "Records of kind outlier as backends store them, where the case has them unrounded");
  sub->footer(
      "The case holds q [HQ, d], k and v [T, HKV, d] in the cache's type (float32 for "
      "float8_e4m3),\n"
      "tau [HQ]; in its metadata block_size, sub_block, z, offset, beta, pinned_blocks, "
      "rescue_chunk,\n"
      "gate, floor, kv_dtype and, unless it is float16, index_dtype. It may also hold\n"
      "metric [HKV, d, d] and special [T] uint8; and in its metadata other settings of attention,\n"
      "index, record (int8 or float32), thresholds (given or relative), relative_c.\n"
      "The result holds out [HQ, d] float64, used [HQ, N] uint8, tokens_per_head [HQ] and\n"
      "tokens_per_kv_head [HKV] int64; with own reads used is admitted, too.");
  sub->callback([command, &status] { status = command->Run(); });
}

void AddScoreCommand(CLI::App& app, absl::Status& status) {
  CLI::App* sub = app.add_subcommand(
      "score", "Forces a text through a model token by token; writes logits and counts");
  auto command = std::make_shared<ScoreCommand>();
  command->files.Register(*sub);
  command->runtime.Register(*sub);
  sub->footer(
      "The case holds tokens [n] int32 and, in mode frozen, profile [L, HQ]; in its metadata\n"
      "prompt_tokens, mode (full, eta, floor, frozen, relative), block_size, sub_block, z, "
      "offset,\n"
      "beta, pinned_blocks, rescue_chunk, floor and, if they are not the paper's, other settings\n"
      "of attention and relative_c. The result holds logits [rows, V], thresholds and\n"
      "tokens_attended [L, HQ, rows], tokens_read [L, HKV, rows]; row 0 is the prompt's last\n"
      "position and counts the whole prompt.");
  sub->callback([command, &status] { status = command->Run(); });
}

}  // namespace eta
