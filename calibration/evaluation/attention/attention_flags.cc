#include "calibration/evaluation/attention/attention_flags.h"

#include <functional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "calibration/evaluation/attention/attention_resolution.h"
#include "engine/base/error.h"

namespace eta {
void AttentionFlags::Register(CLI::App& command) {
  command
      .add_option("--attention", names,
                  "full; dynamic (the model's own thresholds); relative[:C]; profile:FILE, an "
                  "exported profile or {\"name\": ..., \"thresholds\": [[..HQ], ..L]}; or a rival: "
                  "topk:SHARE, quest:SHARE, oracle:C, constants:UNION, window:W, streaming:W, "
                  "bigbird:W:STRIDE, h2o:W:SHARE. Settings of its own may follow, as in "
                  "relative:-4.6+reads=own, also block_size and index. May be given several times")
      ->required()
      ->allow_extra_args(false)
      ->type_name("WAY");
  const auto add = [&](const std::string& name, const char* help, const char* type) {
    const auto set = [this, name](const std::string& value) {
      const absl::Status status = SetAttention(name, value, settings);
      if (!status.ok()) throw CLI::ValidationError(absl::StrCat("--", status.message()));
    };
    command.add_option_function<std::string>("--" + name, set, help)->type_name(type);
  };
  add("z",
      "Width of the bound in deviations, of every head [the profile's; else 1.5 with a floor, 2 "
      "without]",
      "0..16");
  add("floor",
      "Weight of pruned keys: uniform or none [the profile's; else uniform for gated models]",
      "none|uniform");
  add("offset", "Operating offset of the thresholds; above 0 admits more [the profile's; else 0]",
      "-100..100");
  add("pinned_blocks", "Last full blocks, always admitted [2]", "0..1024");
  add("sink_blocks", "First full blocks, always admitted [the profile's; else the model's]",
      "0..1024");
  add("reads",
      "What a head attends to: the blocks that it admitted, or all that are read for its KV head "
      "[the profile's; else the model's]",
      "own|shared");
  add("confirm",
      "Read V of a block only if its true scores reach the threshold [the profile's; else false]",
      "false|true");
  add("prefill_attention",
      "What rows of a prompt attend to: all keys, or the blocks that they admit, as rows of an "
      "answer do [the profile's; else full]",
      "full|sparse");
  add("special_keys",
      "Keys of control tokens: attended to like others, or weighing exp(0) [the profile's; else "
      "the model's]",
      "attend|temper");
}

absl::StatusOr<std::vector<EvaluatedAttention>> AttentionFlags::Resolve(
    const Runtime& loaded, const KvGeometry& geometry) const {
  std::vector<EvaluatedAttention> evaluated;
  bool sparse = false;
  for (const std::string& name : names) {
    absl::StatusOr<EvaluatedAttention> attention =
        ResolveEvaluated(name, settings, loaded, geometry);
    if (!attention.ok()) return attention.status();
    sparse = sparse || !attention->options.admit_all;
    evaluated.push_back(*std::move(attention));
  }
  if (!sparse && settings.of_sparse_attention()) {
    return InvalidField("attention",
                        "full attention reads no z, floor, pinned_blocks, sink_blocks, reads, "
                        "confirm or prefill_attention");
  }
  return evaluated;
}

}  // namespace eta
