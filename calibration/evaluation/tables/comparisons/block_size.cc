// Block sizes, each at an offset at which it reads one and the same union of blocks.

#include <cmath>
#include <iterator>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "calibration/evaluation/tables/comparisons/arms.h"
#include "calibration/evaluation/tables/comparisons/comparisons.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr double kUnion = 0.51;  // the paper's

struct BlockSize {
  int32_t tokens;
  double z;  // the paper's; of sizes that it does not have, the nearest's
  std::optional<double> head, join, perplexity;
};
constexpr BlockSize kSizes[] = {{4, 2.0, .3477, .5157, 102.32}, {8, 2.0, .3723, .5395, 98.39},
                                {16, 1.5, .3270, .4751, 99.07}, {32, 1.0, .3900, .5061, 95.92},
                                {64, 1.0, .4426, .5194, 93.48}, {128, 1.0, {}, {}, {}}};

// At a parameter in (0, 1): offsets from -6 to 6, or constants from -9 to -1.
ArmFamily FamilyOf(const ModelConfig& config, const BlockSize& size) {
  const int32_t tokens = size.tokens;
  if (config.gate == Gate::kNone) {
    return [tokens](double p) {
      return absl::StrFormat("relative:%.3f+block_size=%d", -1.0 - 8.0 * p, tokens);
    };
  }
  return [tokens, z = size.z](double p) {
    return absl::StrFormat("dynamic+floor=none+z=%.1f+block_size=%d+offset=%.3f", z, tokens,
                           -6.0 + 12.0 * p);
  };
}

}  // namespace

absl::StatusOr<Table> MeasureBlockSize(TableBench& bench) {
  ArmBench arms(bench, bench.Context(2048, 1024));
  const int32_t prefill = arms.context() / 2;
  const BenchText text = bench.Texts().front();
  ASSIGN_OR_RETURN(const auto windows, bench.Windows(text, arms.context(), bench.Samples(16, 2)));
  ArmScores scores(arms, windows, prefill);
  const std::string all[] = {"full"};
  RETURN_IF_ERROR(scores.Measure(all, Portion::kAll));
  const AttentionScore& full = scores.Of("full");
  Table table = {
      .name = "blocksize",
      .title = "Block sizes at one union, or as near to it as they come",
      .method = absl::StrFormat(
          "Each block size at the offset (or constant) at which these windows read a union of "
          "%.0f %%, or as near as it goes: pinned blocks are always read. Perplexity of the second "
          "half of each window, decoded; its ratio to full attention's, paired; intervals over "
          "windows.",
          100.0 * kUnion),
      .paper = "Table 2, 126M, C4 at 2048 tokens",
      .counted = "tokens",
      .settings = {{"text", text.name},
                   {"context", absl::StrCat(arms.context())},
                   {"prompt", absl::StrCat(prefill)}},
      .keys = {"block size", "attention"},
      .columns = {Percent("head"),
                  Percent("union"),
                  Percent("bytes"),
                  {.name = "perplexity", .digits = 3},
                  {.name = "ratio", .digits = 4}}};
  LineChart chart = {.title = "Perplexity by block size",
                     .x_label = "tokens of a block",
                     .lines = {{.name = "perplexity", .points = {}, .dots = true}},
                     .log_x = true};
  int64_t done = 0;
  for (const BlockSize& size : kSizes) {
    const ArmFamily family = FamilyOf(bench.config(), size);
    TriedArms tried;
    const ReadsWanted wanted = {
        .family = family,
        .reads = kUnion,
        .of = [&](const std::string& name,
                  Portion portion) { return scores.Of(name, portion).union_density; },
        .tried = tried};
    ASSIGN_OR_RETURN(
        const auto arms_matched,
        MatchReads(std::span(&wanted, 1), [&](std::span<const std::string> names, Portion portion) {
          return scores.Measure(names, portion);
        }));
    const MatchedArm& matched = arms_matched.front();
    const AttentionScore& score = scores.Of(matched.name);
    const auto tokens = static_cast<int64_t>(score.losses.size());
    table.rows.push_back({.labels = {absl::StrCat(size.tokens), matched.name},
                          .cells = {WithPaper(PlainCell(score.head_density), size.head),
                                    WithPaper(PlainCell(score.union_density), size.join),
                                    PlainCell(score.bytes_read()),
                                    WithPaper(ExpCell(score.loss, tokens), size.perplexity),
                                    ExpCell(PairedDifference(score, full), tokens)},
                          .n = tokens});
    chart.lines[0].points.push_back(
        {.x = static_cast<double>(size.tokens), .y = std::exp(score.loss.mean)});
    bench.Progress(++done, std::ssize(kSizes));
  }
  table.figures.push_back(std::move(chart));
  return table;
}

}  // namespace eta
