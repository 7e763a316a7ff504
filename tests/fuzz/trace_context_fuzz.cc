// Any metadata as a trace context: none, or one in the form of the specification, which what we
// send on keeps to. Input: lines; those that begin with p are values of traceparent, the others of
// tracestate.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grpc/grpc.h"
#include "grpcpp/server_context.h"
#include "grpcpp/test/server_context_test_spouse.h"
#include "service/wire/trace_context.h"
#include "tests/testing/fuzz/input_reader.h"

namespace {

// Held, else it would begin and end with every call's context: 2 ms of an input that takes 0.05.
[[maybe_unused]] const bool kLibraryIsUp = (grpc_init(), true);

bool IsId(std::string_view text, size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos &&
         text.find_first_not_of('0') != std::string_view::npos;
}

// Beyond the 32 members of a tracestate; with hundreds of lines a second has 300 inputs, not
// 12,000.
constexpr size_t kMaxLines = 64;

// As a call carries it, the values in the order that they came in.
std::optional<eta::TraceContext> FromCall(const std::vector<std::string_view>& parents,
                                          const std::vector<std::string_view>& states) {
  grpc::ServerContext call;
  grpc::testing::ServerContextTestSpouse spouse(&call);
  for (const auto parent : parents) spouse.AddClientMetadata("traceparent", std::string(parent));
  for (const auto state : states) spouse.AddClientMetadata("tracestate", std::string(state));
  return eta::TraceContextOf(call);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using eta::fuzz::Require;
  eta::fuzz::InputReader reader(data, size);
  std::vector<std::string_view> parents;
  std::vector<std::string_view> states;
  while (!reader.empty() && parents.size() + states.size() < kMaxLines) {
    const std::string_view line = reader.Until('\n');
    if (line.starts_with('p')) {
      parents.push_back(line.substr(1));
    } else {
      states.push_back(line);
    }
  }
  const auto context = eta::ParseTraceContext(parents, states);
  const auto from_call = FromCall(parents, states);
  Require(context.has_value() == from_call.has_value());
  if (!context) return 0;
  Require(context->trace_id == from_call->trace_id && context->state == from_call->state);
  Require(IsId(context->trace_id, 32) && IsId(context->parent_id, 16));
  Require(context->state.size() <= 512);
  Require(std::all_of(context->state.begin(), context->state.end(),
                      [](char c) { return c == '\t' || (c >= ' ' && c <= '~'); }));
  const eta::TraceContext begun = eta::NewTrace(static_cast<double>(size % 2));
  Require(IsId(begun.trace_id, 32) && begun.sampled == (size % 2 == 1));
  const std::string ours = context->ParentOf(eta::NewSpanId());
  const auto next = eta::ParseTraceContext({ours}, {context->state});
  Require(next && next->trace_id == context->trace_id && next->sampled == context->sampled);
  Require(next->state == context->state);
  return 0;
}
