// eta-eval table: measures one table. eta-eval report: all of them, as one page.

#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "calibration/evaluation/commands/commands.h"
#include "calibration/evaluation/commands/progress_bar.h"
#include "calibration/evaluation/runtime/number_flags.h"
#include "calibration/evaluation/runtime/program.h"
#include "calibration/evaluation/tables/report.h"
#include "calibration/evaluation/tables/table.h"
#include "calibration/evaluation/tables/tables.h"
#include "engine/base/files/output_file.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_fingerprint.h"

namespace eta {
namespace {

constexpr int32_t kMaxTableContext = 1 << 20;

std::vector<std::string> TableNames() {
  std::vector<std::string> names;
  for (const TableKind& kind : TableKinds()) names.push_back(kind.name);
  return names;
}

std::string TableHelp() {
  std::string help = "Tables:\n";
  for (const TableKind& kind : TableKinds()) {
    absl::StrAppend(&help, "  ", kind.name, std::string(15 - std::string(kind.name).size(), ' '),
                    kind.help, "\n");
  }
  return help;
}

// Flags of both commands. The object must not move until the command line is parsed.
struct TableFlags {
  RuntimeFlags runtime;
  TableSettings settings;

  void Register(CLI::App& command) {
    runtime.Register(command);
    command.add_option("--text", settings.texts,
                       "Text in the place of the evaluation sets: .txt or .jsonl, also .xz. May be "
                       "given several times");
    command.add_option("--data", settings.data, "Folder of the evaluation sets")
        ->capture_default_str();
    command.add_flag("--quick", settings.quick, "Small samples");
    AddCount(command, "--context", settings.context, 0, kMaxTableContext,
             "Tokens of a window; 0: the table's own");
    AddCount(command, "--samples", settings.samples, 0, 1 << 16,
             "Windows, or trials of each kind; 0: the table's own");
    AddCount(command, "--questions", settings.questions, 0, 1 << 16,
             "Questions of a task; 0: the table's own");
    command
        .add_option("--against", settings.against,
                    "What table weights compares the model with: a format that its weights are "
                    "rounded to at load, or the file or folder of another form of it. May be given "
                    "several times [int8, int4]")
        ->allow_extra_args(false);
    command.add_option("--seed", settings.seed, "Of all that is drawn")->capture_default_str();
  }
};

struct TableCommand {
  TableFlags flags;
  std::string name;
  std::string json;
  std::string svg;

  void Register(CLI::App& command) {
    command.add_option("NAME", name, "The table")->required()->check(CLI::IsMember(TableNames()));
    flags.Register(command);
    command.add_option("--json", json, "File to write the table to as JSON");
    command.add_option("--svg", svg, "File to write its figures to");
  }

  absl::Status Run() const {
    ASSIGN_OR_RETURN(const auto bench, TableBench::Load(flags.runtime, flags.settings));
    absl::StatusOr<Table> table;
    {
      ProgressBar bar;
      bench->progress = [&bar](int64_t done, int64_t total) { bar.Show(done, total); };
      table = MeasureTable(*FindTable(name), *bench);
      bench->progress = nullptr;
    }
    if (!table.ok()) return table.status();
    std::fputs(TableText(*table).c_str(), stdout);
    if (!json.empty()) RETURN_IF_ERROR(WriteWholeFile(json, TableJson(*table)));
    if (!svg.empty()) RETURN_IF_ERROR(WriteWholeFile(svg, TableSvg(*table)));
    return absl::OkStatus();
  }
};

struct ReportCommand {
  TableFlags flags;
  std::vector<std::string> names;
  std::string output;

  void Register(CLI::App& command) {
    flags.Register(command);
    command
        .add_option("--output", output, "Folder for report.md and each table's .md, .json and .svg")
        ->required();
    command.add_option("--table", names, "One table; may be given several times [all]")
        ->check(CLI::IsMember(TableNames()));
  }

  absl::Status Run() const {
    ASSIGN_OR_RETURN(const auto bench, TableBench::Load(flags.runtime, flags.settings));
    ASSIGN_OR_RETURN(const auto model,
                     ModelFingerprint(bench->config(), bench->runtime().checkpoint()));
    std::vector<const TableKind*> tables;
    for (const std::string& name : names.empty() ? TableNames() : names) {
      tables.push_back(FindTable(name));
    }
    const RuntimeFlags& runtime = flags.runtime;
    const std::string backend = bench->runtime().backend().description();
    const std::string key = absl::StrCat(
        model, " ", bench->runtime().backend().name() == "cuda" ? backend : std::string(), " ",
        std::string(Name(runtime.kv_dtype)), " ", std::string(Name(bench->Geometry().index)), " ",
        std::string(Name(bench->Geometry().index_dtype)), " ", std::string(Name(runtime.weights)));
    ProgressBar bar;
    constexpr int64_t kSteps = 10'000;
    return WriteReport(*bench,
                       {.folder = output,
                        .title = absl::StrCat("eta-eval report: ", runtime.model_dir, ", ", backend,
                                              flags.settings.quick ? ", quick" : ""),
                        .key = key,
                        .tables = tables,
                        .progress = [&bar](double share, const std::string& table) {
                          bar.Show(static_cast<int64_t>(share * kSteps), kSteps, table);
                        }});
  }
};

}  // namespace

void AddTableCommand(CLI::App& app, absl::Status& status) {
  AddCommand<TableCommand>(app, status, "table", "Measures one table of the method's claims")
      ->footer(TableHelp());
}

void AddReportCommand(CLI::App& app, absl::Status& status) {
  AddCommand<ReportCommand>(app, status, "report", "Measures all tables and writes one page")
      ->footer(TableHelp() +
               "A table that the folder has already, measured with the same settings on the same\n"
               "model, is not measured again: a report that was stopped goes on where it was.");
}

}  // namespace eta
