// A request's whole way into an engine, for tests that charge for nothing on it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/front/engine.h"

namespace eta::testing {

// Checks, prepares and submits. On error the sink is not called.
inline absl::StatusOr<uint64_t> Submit(Engine& engine, Request request,
                                       std::shared_ptr<EventSink> sink) {
  if (const auto tokens = engine.Check(request); !tokens.ok()) return tokens.status();
  auto prepared = engine.Prepare(std::move(request));
  if (!prepared.ok()) return prepared.status();
  return engine.Submit(*std::move(prepared), std::move(sink));
}

}  // namespace eta::testing
