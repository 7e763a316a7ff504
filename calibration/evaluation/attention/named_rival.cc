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
      return MakeQuest(number, static_cast<int32_t>(second));
    case AttentionKind::kOracle:
      return MakeOracle(static_cast<float>(number));
    case AttentionKind::kWindow:
    case AttentionKind::kStreaming:
      return MakeWindow({number});
    case AttentionKind::kBigBird:
      return MakeBigBird({number}, static_cast<int32_t>(second));
    case AttentionKind::kH2o:
    case AttentionKind::kH2oBlocks:
      return MakeH2o({.window = {number},
                      .share = second,
                      .gate = {gate == Gate::kSilu, beta},
                      .by_key = name.kind == AttentionKind::kH2o});
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
  const bool sink = kind == AttentionKind::kStreaming || kind == AttentionKind::kH2oBlocks;
  if (!sink && kind != AttentionKind::kWindow && kind != AttentionKind::kBigBird &&
      kind != AttentionKind::kH2o) {
    return;
  }
  settings = settings.Or({.pinned_blocks = 0, .sink_blocks = sink ? 1 : 0});
}

}  // namespace eta
