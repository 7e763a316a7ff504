#include "engine/front/routed_sinks.h"

namespace eta {

LoadShare::LoadShare(std::shared_ptr<EngineLoads> loads, size_t engine, int64_t cost)
    : loads_(std::move(loads)), engine_(engine), cost_(cost) {
  (*loads_)[engine_] += cost_;
}

LoadShare::~LoadShare() {
  (*loads_)[engine_] -= cost_;
}

RoutedSink::RoutedSink(std::shared_ptr<EventSink> sink, std::shared_ptr<EngineLoads> loads,
                       std::shared_ptr<RoutedRequests> routed, Replace replace)
    : sink_(std::move(sink)),
      loads_(std::move(loads)),
      routed_(std::move(routed)),
      replace_(std::move(replace)),
      handle_(routed_->Open()) {}

void RoutedSink::Charge(size_t engine, int64_t cost) {
  engine_ = engine;
  load_.emplace(loads_, engine, cost);
}

bool RoutedSink::OnGivenBack(const PreparedRequest& request) {
  ++moves_;
  return replace_(request, shared_from_this(), engine_);
}

RoutedPassSink::RoutedPassSink(std::shared_ptr<PassSink> sink, std::shared_ptr<EngineLoads> loads,
                               size_t engine, int64_t cost, std::shared_ptr<RoutedRequests> routed)
    : sink_(std::move(sink)),
      load_(std::move(loads), engine, cost),
      routed_(std::move(routed)),
      handle_(routed_->Open()) {}

}  // namespace eta
