#include "calibration/evaluation/attention/named_rival.h"

#include "calibration/evaluation/rivals/h2o.h"
#include "calibration/evaluation/rivals/oracle.h"
#include "calibration/evaluation/rivals/quest.h"
#include "calibration/evaluation/rivals/top_k.h"
#include "calibration/evaluation/rivals/window.h"

namespace eta {

std::shared_ptr<const Rival> NamedRival(const AttentionName& name, Gate gate, float beta) {
  const double number = name.number.value_or(0.0f);
  const double second = name.second.value_or(0.0f);
  switch (name.kind) {
    case AttentionKind::kTopK:
      return MakeTopK(number);
    case AttentionKind::kQuest:
      return MakeQuest(number);
    case AttentionKind::kOracle:
      return MakeOracle(static_cast<float>(number));
    case AttentionKind::kWindow:
    case AttentionKind::kStreaming:
    case AttentionKind::kBigBird:
      return MakeWindow({number}, static_cast<int32_t>(second));
    case AttentionKind::kH2o:
      return MakeH2o(
          {.window = {number}, .share = second, .silu = gate == Gate::kSilu, .beta = beta});
    case AttentionKind::kFull:
    case AttentionKind::kDynamic:
    case AttentionKind::kRelative:
    case AttentionKind::kProfile:
    case AttentionKind::kConstants:
      break;
  }
  return nullptr;
}

void SetLocality(AttentionKind kind, AttentionSettings& settings) {
  const bool window = kind == AttentionKind::kWindow;
  if (!window && kind != AttentionKind::kStreaming && kind != AttentionKind::kBigBird &&
      kind != AttentionKind::kH2o) {
    return;
  }
  settings = settings.Or({.pinned_blocks = 0, .sink_blocks = window ? 0 : 1});
}

}  // namespace eta
