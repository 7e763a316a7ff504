// eta-eval prove: what an operator wants to see before sparsity is turned on.

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/commands/progress_bar.h"
#include "calibration/evaluation/prove/proof_page.h"
#include "calibration/evaluation/prove/proof_run.h"
#include "calibration/evaluation/prove/proved_profile.h"
#include "calibration/evaluation/runtime/number_flags.h"
#include "calibration/evaluation/runtime/program.h"
#include "calibration/evaluation/runtime/runtime_flags.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr int32_t kLeastLength = 512;
constexpr int32_t kMostLength = 1 << 20;
constexpr int32_t kQuickLength = 4096;

// The command line as a shell takes it.
std::string CommandLine(const CLI::App& command) {
  std::string line = absl::StrCat("eta-eval ", command.get_name());
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& value : option->results()) {
      const bool plain = !value.empty() &&
                         value.find_first_of(" \t\n'\"\\$`*?&|;<>()#~!{}[]") == std::string::npos;
      absl::StrAppend(
          &line, " ", option->get_name(), "=",
          plain ? value : absl::StrCat("'", absl::StrReplaceAll(value, {{"'", "'\\''"}}), "'"));
    }
  }
  return line;
}

struct ProveCommand {
  RuntimeFlags runtime;
  TableSettings settings;
  std::string attention = "dynamic";
  std::string output;
  std::string traffic;
  int32_t prompts = ProofPlan().prompts;
  bool parse_special = false;
  ProofTolerance tolerance;
  const CLI::App* command = nullptr;

  void Register(CLI::App& app);
  void RegisterTolerance(CLI::App& app);
  ProofInput Input(const TableBench& bench) const;
  absl::StatusOr<Proof> Measure() const;
  absl::Status Run() const;
};

void ProveCommand::Register(CLI::App& app) {
  command = &app;
  runtime.Register(app);
  app.add_option("--attention", attention,
                 "The way of attending that is proved, such as profile:FILE (`perplexity --help` "
                 "has all); dynamic: the model's default")
      ->type_name("WAY")
      ->capture_default_str();
  app.add_option("--output", output,
                 "Folder for proof.md, proof.json and the pictures; one that holds a part of this "
                 "proof goes on")
      ->required();
  AddCount(app, "--length", settings.context, 0, kMostLength,
           "Longest context, at least 512; 0: the model's, with --quick 4096 at most");
  app.add_option("--text", settings.texts,
                 "Text in the place of the evaluation sets: .txt or .jsonl, also .xz. May be given "
                 "several times")
      ->allow_extra_args(false);
  app.add_option("--data", settings.data, "Folder of the evaluation sets")->capture_default_str();
  app.add_option("--traffic", traffic,
                 "Prompts of your own: .jsonl with a field 'text' per line, also .xz");
  AddCount(app, "--prompts", prompts, 0, 1 << 16,
           "Prompts of --traffic to take, evenly spaced, with --quick 4 at most; 0: all");
  app.add_flag("--parse_special", parse_special,
               "Control tokens that a prompt of --traffic spells are those tokens, as a chat "
               "template writes them");
  app.add_flag("--quick", settings.quick, "Small samples, one length, and no verdict");
  app.add_option("--seed", settings.seed, "Of all that is drawn")->capture_default_str();
  RegisterTolerance(app);
}

void ProveCommand::RegisterTolerance(CLI::App& app) {
  AddReal(app, "--macro_points", tolerance.macro_points, 0.0, 100.0,
          "Points that the mean of RULER's tasks may lose");
  AddReal(app, "--task_points", tolerance.task_points, 0.0, 100.0,
          "Points below which no task's interval may lie wholly");
  AddReal(app, "--perplexity_increase", tolerance.perplexity_increase, 0.0, 1000.0,
          "Percent that perplexity may lie over full attention's");
  AddReal(app, "--speed", tolerance.speed, 0.0, 10.0,
          "Least decode speed at short contexts, over full attention's");
}

ProofInput ProveCommand::Input(const TableBench& bench) const {
  const int32_t longest = bench.Context(bench.config().max_context, kQuickLength);
  ProofInput input = {.attention = attention,
                      .traffic = traffic,
                      .parse_special = parse_special,
                      .plan = MakeProofPlan(longest, settings.quick)};
  if (!settings.quick || (prompts > 0 && prompts < input.plan.prompts)) {
    input.plan.prompts = prompts;
  }
  return input;
}

absl::StatusOr<Proof> ProveCommand::Measure() const {
  ASSIGN_OR_RETURN(const auto bench, TableBench::Load(runtime, settings));
  const ProofInput input = Input(*bench);
  ASSIGN_OR_RETURN(const std::vector<EvaluatedAttention> ways, ProofWays(*bench, attention));
  ASSIGN_OR_RETURN(ProofKey key, MakeProofKey(*bench, ways[1], input));
  key.emplace_back("weights", std::string(Name(runtime.weights)));
  ASSIGN_OR_RETURN(const QuestionSource questions, RulerQuestions(*bench));
  ASSIGN_OR_RETURN(const auto log, ProofLog::Open(output, key));

  Proof proof = {.model = runtime.model_dir,
                 .attention = attention,
                 .settings = WayInWords(ways[1]),
                 .command = CommandLine(*command),
                 .quick = settings.quick,
                 .key = std::move(key),
                 .fingerprint = log->fingerprint(),
                 .plan = input.plan,
                 .tolerance = tolerance};
  ProgressBar bar;
  ProofClock clock([&bar](double done, double left, const std::string& part) {
    bar.Show(static_cast<int64_t>(done), static_cast<int64_t>(done + left), part);
  });
  ASSIGN_OR_RETURN(proof.scores, MeasureProof(*bench, ways, input, questions, *log, clock));
  proof.verdict = JudgeProof(proof.scores, tolerance);
  return proof;
}

absl::Status ProveCommand::Run() const {
  if (settings.context != 0 && settings.context < kLeastLength) {
    return absl::InvalidArgumentError(absl::StrCat("length: must be 0 or at least ", kLeastLength));
  }
  ASSIGN_OR_RETURN(std::optional<PortableProfile> profile, ProfileToProve(attention));
  ASSIGN_OR_RETURN(const Proof proof, Measure());
  ASSIGN_OR_RETURN(const std::string digest, WriteProof(proof, output));
  std::printf("%spage: %s/proof.md\n", ProofText(proof).c_str(), output.c_str());
  const std::optional<std::string> verdict = VerdictOf(proof);
  if (profile && verdict) {
    const std::string path = output + "/profile.json";
    RETURN_IF_ERROR(WriteProvedProfile(*std::move(profile), ProofLabel(proof, digest), path));
    std::printf("the profile with this proof as a label: etactl profiles import %s\n",
                path.c_str());
  }
  if (verdict == "fail") return absl::AbortedError("the verdict is: fail");
  return absl::OkStatus();
}

}  // namespace

void AddProveCommand(CLI::App& app, absl::Status& status) {
  AddCommand<ProveCommand>(app, status, "prove",
                           "Proves that a way of attending loses nothing against full attention")
      ->footer(
          "Both ways answer RULER's thirteen kinds of questions, at 4096 tokens, 8192 ... to the\n"
          "model's length; perplexity and divergence on texts, continuations of your own prompts, "
          "and\n"
          "the speed at short contexts are compared too. Exit codes: 0 pass, or --quick; 1 fail, "
          "or a\n"
          "failed run; 2 bad usage or input. A proof that was stopped goes on in its folder; "
          "another\n"
          "tolerance judges what the folder has anew.");
}

}  // namespace eta
