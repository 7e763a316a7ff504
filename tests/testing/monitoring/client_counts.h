// The clients' own counts: calls by their end, and the integers of the answers, under the labels
// that the server should use.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "eta/v1/generate.pb.h"
#include "tests/testing/process/metric_samples.h"

namespace eta::testing {

// The counts of a tenant's answers with one mode and profile, or of all answers of one tenant.
struct AttentionCounts {
  int64_t answers = 0;
  int64_t answers_with_decode = 0;
  int64_t output_tokens = 0;
  int64_t decode_rows = 0;
  int64_t keys_attended = 0;
  int64_t keys_eligible = 0;
  int64_t keys_read = 0;
  int64_t keys_cached = 0;
  int64_t values_read = 0;
  int64_t prefill_steps = 0;
  int64_t prefill_keys_attended = 0;
  int64_t prefill_keys_eligible = 0;
  int64_t kv_bytes_read = 0;
  int64_t kv_bytes_dense = 0;
  int64_t index_bytes_read = 0;
  double head_density = 0.0;   // summed over decode rows
  double union_density = 0.0;  // likewise

  void Add(const v1::Finished& finished);
};

struct TokenCounts {
  int64_t prompt = 0;
  int64_t cached = 0;
  int64_t output = 0;
};

// Thread-safe while calls are counted. Read the maps only when no call is left.
class ClientCounts {
 public:
  // Counts a call under the labels of eta_requests_total.
  void CountCall(const MetricLabels& labels);
  // Counts an answer: the call, its tokens and its attention.
  void CountAnswer(const std::string& tenant, const std::string& mode, const std::string& profile,
                   const v1::Finished& finished);
  // Counts a call that was refused before it ran.
  void CountRefusal(const MetricLabels& labels, const std::string& reason);

  std::map<MetricLabels, int64_t> calls;
  std::map<MetricLabels, int64_t> refusals;           // by method and reason
  std::map<MetricLabels, TokenCounts> tokens;         // by tenant, profile and version
  std::map<MetricLabels, AttentionCounts> attention;  // by mode, profile, version and tenant
  std::map<MetricLabels, AttentionCounts> tenants;    // by tenant
  int64_t preemptions = 0;
  v1::DraftStats drafts;

 private:
  std::mutex mutex_;
};

}  // namespace eta::testing
