#include "calibration/evaluation/attention/attention_flags.h"

#include <functional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "calibration/evaluation/attention/attention_resolution.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
void AttentionFlags::Register(CLI::App& command) {
  command
      .add_option(
          "--attention", names,
          "full; dynamic (the model's own thresholds); relative[:C]; profile:FILE, an "
          "exported profile or {\"name\": ..., \"thresholds\": [[..HQ], ..L]}; or a rival: "
          "topk:SHARE, quest:SHARE[:DENSE], oracle:C, constants:UNION, window:W, "
          "streaming:W, bigbird:W:STRIDE, h2o:W:SHARE, h2o_blocks:W:SHARE. Settings of its "
          "own may follow, as in relative:-5.0+reads=own, also block_size and index. May be "
          "given several times")
      ->required()
      ->allow_extra_args(false)
      ->type_name("WAY");
  const auto add = [&](const std::string& name, const std::string& help, const std::string& type) {
    const auto set = [this, name](const std::string& value) {
      const absl::Status status = SetAttention(name, value, settings);
      if (!status.ok()) throw CLI::ValidationError(absl::StrCat("--", status.message()));
    };
    command.add_option_function<std::string>("--" + name, set, help)->type_name(type);
  };
  ForEachSetting([&](const AttentionField& field, auto) {
    if (IsEvaluated(field)) add(FlagOf(field), field.help, RangeOf(field));
  });
}

absl::StatusOr<std::vector<EvaluatedAttention>> AttentionFlags::Resolve(
    const Runtime& loaded, const KvGeometry& geometry) const {
  std::vector<EvaluatedAttention> evaluated;
  bool sparse = false;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(EvaluatedAttention attention,
                     ResolveEvaluated(name, settings, loaded, geometry));
    sparse = sparse || !attention.options.admit_all;
    evaluated.push_back(std::move(attention));
  }
  if (!sparse && AsksOfSparseAttention(settings.attention)) {
    return InvalidField("attention", "full attention reads no setting but offset and special_keys");
  }
  return evaluated;
}

}  // namespace eta
