#include "calibration/evaluation/tables/report.h"

#include <filesystem>
#include <optional>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "calibration/evaluation/tables/table.h"
#include "engine/base/error.h"
#include "engine/base/files/input_file.h"
#include "engine/base/files/output_file.h"
#include "engine/base/sha256.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr uint64_t kMostSectionBytes = uint64_t{4} << 20;

// Texts and forms of the model are told apart by name and size.
std::string SettingsKey(const TableBench& bench, const std::string& key, const char* table) {
  const TableSettings& settings = bench.settings();
  std::string text = absl::StrCat(table, "\n", key, "\n", settings.quick, " ", settings.seed, " ",
                                  settings.context, " ", settings.samples, " ", settings.questions,
                                  " ", settings.data);
  const auto add = [&text](const std::string& path) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    absl::StrAppend(&text, "\n", path, " ", error ? 0 : size);
  };
  for (const BenchText& read : bench.Texts()) add(read.path);
  for (const std::string& form : settings.against) add(form);
  return text;
}

std::string Mark(const std::string& digest) {
  return absl::StrCat("<!-- eta-eval ", digest, " -->\n");
}

// The section that was measured with these settings before, if it stands there.
std::optional<std::string> StoredSection(const std::string& path, const std::string& mark) {
  const absl::StatusOr<InputFile> file = InputFile::Open(path);
  if (!file.ok()) return std::nullopt;
  absl::StatusOr<std::string> text = file->ReadAll(kMostSectionBytes);
  if (!text.ok() || !text->starts_with(mark)) return std::nullopt;
  return text->substr(mark.size());
}

class Report {
 public:
  Report(TableBench& bench, const ReportOptions& options) : bench_(bench), options_(options) {
    for (const TableKind* kind : options.tables) weight_ += kind->weight;
  }

  absl::Status Write() {
    std::error_code error;
    std::filesystem::create_directories(options_.folder, error);
    if (error || !std::filesystem::is_directory(options_.folder, error)) {
      return InvalidField("output", absl::StrCat("the folder cannot be made: ", options_.folder));
    }
    for (const TableKind* kind : options_.tables) {
      RETURN_IF_ERROR(Section(*kind));
      done_ += kind->weight;
    }
    return WriteWholeFile(options_.folder + "/report.md", Page());
  }

 private:
  absl::Status Section(const TableKind& kind) {
    ASSIGN_OR_RETURN(const auto digest, Sha256Hex(SettingsKey(bench_, options_.key, kind.name)));
    const std::string path = absl::StrCat(options_.folder, "/", kind.name);
    if (auto stored = StoredSection(path + ".md", Mark(digest))) {
      Add(*std::move(stored));
      return absl::OkStatus();
    }
    bench_.progress = [&](int64_t done, int64_t total) {
      const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0.0;
      if (options_.progress) options_.progress((done_ + kind.weight * share) / weight_, kind.name);
    };
    bench_.Progress(0, 1);
    const absl::StatusOr<Table> table = MeasureTable(kind, bench_);
    bench_.progress = nullptr;
    if (absl::IsFailedPrecondition(table.status())) {
      unmeasured_.push_back(
          absl::StrCat("`", kind.name, "`: ", std::string(table.status().message())));
      return absl::OkStatus();
    }
    if (!table.ok()) return table.status();
    RETURN_IF_ERROR(WriteWholeFile(path + ".json", TableJson(*table)));
    const std::string picture = TableSvg(*table);
    if (!picture.empty()) RETURN_IF_ERROR(WriteWholeFile(path + ".svg", picture));
    // Last: what it marks is whole.
    std::string section = TableMarkdown(*table, absl::StrCat(kind.name, ".svg"));
    RETURN_IF_ERROR(WriteWholeFile(path + ".md", Mark(digest) + section));
    Add(std::move(section));
    return absl::OkStatus();
  }

  void Add(std::string section) {
    std::istringstream lines(section);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("> ")) findings_.push_back(line.substr(2));
    }
    sections_.push_back(std::move(section));
  }

  std::string Page() const {
    std::string page = absl::StrCat("# ", options_.title, "\n\n");
    for (const std::string& finding : findings_) absl::StrAppend(&page, "- ", finding, "\n");
    if (!findings_.empty()) page += "\n";
    absl::StrAppend(&page, absl::StrJoin(sections_, "\n"));
    if (!unmeasured_.empty()) {
      absl::StrAppend(&page, "\n## Not measured\n\n- ", absl::StrJoin(unmeasured_, "\n- "), "\n");
    }
    return page;
  }

  TableBench& bench_;
  const ReportOptions& options_;
  double weight_ = 0.0;
  double done_ = 0.0;
  std::vector<std::string> sections_;
  std::vector<std::string> findings_;
  std::vector<std::string> unmeasured_;
};

}  // namespace

absl::Status WriteReport(TableBench& bench, const ReportOptions& options) {
  return Report(bench, options).Write();
}

}  // namespace eta
