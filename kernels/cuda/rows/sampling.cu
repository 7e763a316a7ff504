// Sample draws one token for each row from its logits [V]: mask, bias, penalties, temperature,
// top_k, top_p and min_p apply in this order, then the draw (SampleRow in
// kernels/params/sampling.h). One CTA takes a row. ranking.cuh has the cutting of a ranking. Start,
// end and latency bind.

#include <algorithm>
#include <cstring>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/rows/ranking.cuh"
#include "kernels/cuda/rows/sampling.h"

namespace eta::cuda {
namespace {

// A token that occurred and gets a penalty.
struct Seen {
  int32_t id;
  int32_t output;  // times in the answer
};

struct PackedRow {
  double uniform = 0.0;
  int64_t seen_at = 0;  // bytes from the beginning of the blob
  int64_t bias_at = 0;
  int64_t mask_at = 0;    // 0: every token may be drawn
  int64_t top_begin = 0;  // the row's first entry among the alternatives
  int32_t num_seen = 0;
  int32_t num_bias = 0;
  int32_t num_top = 0;      // alternatives; -1: no log-probability at all
  int32_t logits_row = -1;  // -1: a padding row
  int32_t forced = 0;
  float temperature = 0.0f;
  int32_t top_k = 0;
  float top_p = 0.0f;
  float min_p = 0.0f;
  float repetition_penalty = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
};

constexpr int32_t kNotFinite = -1;
constexpr int32_t kBarred = -2;

struct SampleResult {
  int32_t token;  // or why none could be drawn
  float logprob;
};

__host__ __device__ TokenLogprob* Alternatives(std::byte* results, int32_t num_rows) {
  return reinterpret_cast<TokenLogprob*>(results + num_rows * sizeof(SampleResult));
}

size_t NumAlternatives(const SampleRow& row) {
  return row.num_logprobs < 0 ? 0 : std::min(row.top.size(), kMaxAlternatives);
}

// What follows a mask is 8-byte aligned.
size_t MaskBytes(const SampleRow& row) {
  return (row.mask.size_bytes() + 7) / 8 * 8;
}

}  // namespace

size_t PackedBytes(std::span<const SampleRow> rows, int32_t num_rows) {
  size_t bytes = static_cast<size_t>(num_rows) * sizeof(PackedRow);
  for (const SampleRow& row : rows) {
    bytes += row.counts.size() * sizeof(Seen) + row.bias.size_bytes() + MaskBytes(row);
  }
  return bytes;
}

size_t Pack(std::span<const SampleRow> rows, int32_t num_rows, std::byte* packed) {
  auto* headers = reinterpret_cast<PackedRow*>(packed);
  size_t end = static_cast<size_t>(num_rows) * sizeof(PackedRow);
  int64_t top_begin = 0;
  for (size_t i = 0; i < static_cast<size_t>(num_rows); ++i) {
    if (i >= rows.size()) {
      headers[i] = {};
      continue;
    }
    const SampleRow& row = rows[i];
    const bool repetition = row.repetition_penalty != 1.0f;
    const bool penalised =
        repetition || row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f;
    const size_t seen_at = end;
    auto* seen = reinterpret_cast<Seen*>(packed + seen_at);
    int32_t num_seen = 0;
    for (const TokenCount& count : row.counts) {
      if (!penalised || (count.output <= 0 && (count.prompt <= 0 || !repetition))) continue;
      seen[num_seen++] = {count.id, count.output};
    }
    const size_t bias_at = seen_at + static_cast<size_t>(num_seen) * sizeof(Seen);
    if (!row.bias.empty()) std::memcpy(packed + bias_at, row.bias.data(), row.bias.size_bytes());
    const size_t mask_at = bias_at + row.bias.size_bytes();
    if (!row.mask.empty()) std::memcpy(packed + mask_at, row.mask.data(), row.mask.size_bytes());
    end = mask_at + MaskBytes(row);
    const size_t num_top = NumAlternatives(row);
    headers[i] = {.uniform = row.uniform,
                  .seen_at = static_cast<int64_t>(seen_at),
                  .bias_at = static_cast<int64_t>(bias_at),
                  .mask_at = row.mask.empty() ? 0 : static_cast<int64_t>(mask_at),
                  .top_begin = top_begin,
                  .num_seen = num_seen,
                  .num_bias = static_cast<int32_t>(row.bias.size()),
                  .num_top = row.num_logprobs < 0 ? -1 : static_cast<int32_t>(num_top),
                  .logits_row = row.logits_row,
                  .forced = row.forced,
                  .temperature = row.temperature,
                  .top_k = row.top_k,
                  .top_p = row.top_p,
                  .min_p = row.min_p,
                  .repetition_penalty = row.repetition_penalty,
                  .presence_penalty = row.presence_penalty,
                  .frequency_penalty = row.frequency_penalty};
    top_begin += static_cast<int64_t>(num_top);
  }
  return end;
}

size_t ResultBytes(std::span<const SampleRow> rows, int32_t num_rows) {
  size_t bytes = static_cast<size_t>(num_rows) * sizeof(SampleResult);
  for (const SampleRow& row : rows) bytes += NumAlternatives(row) * sizeof(TokenLogprob);
  return bytes;
}

void Unpack(const std::byte* results, int32_t num_rows, std::span<SampleRow> rows) {
  const std::byte* next = results + static_cast<size_t>(num_rows) * sizeof(SampleResult);
  for (size_t i = 0; i < rows.size(); ++i) {
    SampleRow& row = rows[i];
    SampleResult result;
    std::memcpy(&result, results + i * sizeof(result), sizeof(result));
    row.token = std::max(result.token, -1);
    row.finite = result.token >= 0;
    row.barred = result.token == kBarred;
    const std::span<const TokenLogprob> top(reinterpret_cast<const TokenLogprob*>(next),
                                            NumAlternatives(row));
    next += top.size_bytes();
    if (!row.finite || row.num_logprobs < 0) continue;
    row.logprob = result.logprob;
    const auto end = std::find_if(top.begin(), top.end(), [](const auto& t) { return t.id < 0; });
    std::copy(top.begin(), end, row.top.begin());
  }
}

namespace ranking {
namespace {

// Applies mask and bias, then repetition, presence and frequency penalty, in place. A logit that
// becomes infinite or NaN is forbidden. A bias list may name an id twice: then its first entry
// applies all of them, in order.
__device__ void Adjust(const PackedRow& row, const std::byte* packed, float* logits,
                       int32_t vocab) {
  const auto in_range = [&](int32_t id) { return id >= 0 && id < vocab; };
  const auto allowed = [](float logit) { return isfinite(logit) ? logit : -INFINITY; };
  if (row.mask_at != 0) {
    const auto* mask = reinterpret_cast<const uint32_t*>(packed + row.mask_at);
    for (int32_t id = threadIdx.x; id < vocab; id += kThreads) {
      if ((mask[id / 32] >> (id % 32) & 1) == 0) logits[id] = -INFINITY;
    }
    __syncthreads();
  }
  const auto* bias = reinterpret_cast<const LogitBias*>(packed + row.bias_at);
  for (int32_t i = threadIdx.x; i < row.num_bias; i += kThreads) {
    const int32_t id = bias[i].id;
    if (!in_range(id)) continue;
    bool first = true;
    for (int32_t j = 0; j < i; ++j) first = first && bias[j].id != id;
    if (!first) continue;
    float logit = logits[id];
    for (int32_t j = i; j < row.num_bias; ++j) {
      if (bias[j].id == id) logit = __fadd_rn(logit, bias[j].bias);
    }
    logits[id] = allowed(logit);
  }
  __syncthreads();
  const auto* seen = reinterpret_cast<const Seen*>(packed + row.seen_at);
  for (int32_t i = threadIdx.x; i < row.num_seen; i += kThreads) {
    const auto [id, output] = seen[i];
    if (!in_range(id)) continue;
    float logit = logits[id];
    logit = logit > 0.0f ? __fdiv_rn(logit, row.repetition_penalty)
                         : __fmul_rn(logit, row.repetition_penalty);
    if (output > 0) {
      logit = __fsub_rn(logit, row.presence_penalty);
      logit = __fsub_rn(logit, __fmul_rn(row.frequency_penalty, static_cast<float>(output)));
    }
    logits[id] = allowed(logit);
  }
  __syncthreads();
}

// The weight of the tokens that min_p keeps. They are a prefix of the ranking, like those of top_k
// and top_p. So the lightest of the three prefixes is the one that remains.
__device__ uint64_t MinPMass(float min_p) {
  Shared& shared = BlockShared();
  const View view = shared.view;
  const auto least =
      static_cast<uint64_t>(ceil(ldexp(static_cast<double>(min_p), view.weight_bits)));
  const uint64_t most = uint64_t{1} << view.weight_bits;
  const uint64_t bound = least < most ? least : most;
  uint64_t mass = 0;
  ForEachToken<1>(view.logits, view.vocab, nullptr, [&](int32_t, float logit) {
    if (view.CoarseBin(logit) >= kBins) return;
    const uint64_t weight = view.Weight(logit, shared.powers);
    if (weight >= bound) mass += weight;
  });
  return Reduce(mass, [](uint64_t a, uint64_t b) { return a + b; });
}

// Applies temperature, top_k, top_p and min_p to the logits in the view, and draws.
__device__ int32_t Draw(const PackedRow& row) {
  Shared& shared = BlockShared();
  const Slice every = {.coarse = Slice::kByCoarse};
  const Bins bins = Histogram(every);
  uint64_t mass = bins.total.mass;
  if (row.top_k > 0 && static_cast<uint32_t>(row.top_k) < bins.total.count) {
    mass = Reach(every, bins, static_cast<uint64_t>(row.top_k), Measure::kCount).mass;
  }
  if (row.top_p < 1.0f) {
    const auto wanted = static_cast<uint64_t>(ceil(row.top_p * static_cast<double>(mass)));
    const uint64_t needed = wanted < 1 ? 1 : (wanted < mass ? wanted : mass);
    mass = Reach(every, bins, needed, Measure::kMass).mass;
  }
  if (row.min_p > 0.0f) {
    const uint64_t kept = MinPMass(row.min_p);
    mass = kept < mass ? kept : mass;
  }
  const auto target = static_cast<uint64_t>(row.uniform * static_cast<double>(mass));
  const uint64_t needed = target < mass ? target + 1 : mass;
  const Slice drawn = Reach(every, bins, needed, Measure::kMass).last;
  const View view = shared.view;
  ForEachToken<1>(view.logits, view.vocab, nullptr, [&](int32_t id, float logit) {
    if (drawn.Bin(view, logit, id) < kBins) shared.token = id;
  });
  __syncthreads();
  return shared.token;
}

// Returns the log-sum-exp of the logits in the view. Writes the `wanted` most probable tokens,
// ranked, to `top`. If the vocabulary is smaller, ids of -1 fill the rest.
__device__ double LogProbabilities(int32_t wanted, TokenLogprob* top) {
  Shared& shared = BlockShared();
  Slice slice = {.coarse = Slice::kByCoarse};
  Bins bins = Histogram(slice);
  const View view = shared.view;
  const double mass = ldexp(static_cast<double>(bins.total.mass), -view.weight_bits);
  const double log_sum = view.best + log(mass);
  if (wanted == 0) return log_sum;
  const int32_t count = min(wanted, view.vocab);
  for (int32_t i = count + threadIdx.x; i < wanted; i += kThreads) top[i] = {-1, 0.0f};
  if (static_cast<uint32_t>(count) > bins.total.count) {
    slice = Slice::All(view);
    bins = Histogram(slice);
  }
  const Slice last = Reach(slice, bins, static_cast<uint64_t>(count), Measure::kCount).last;
  if (threadIdx.x == 0) shared.num_listed = 0;
  __syncthreads();
  ForEachToken<1>(view.logits, view.vocab, nullptr, [&](int32_t id, float logit) {
    if (!last.Reaches(view, logit, id)) return;
    shared.listed[atomicAdd(&shared.num_listed, 1)] = view.Key(logit, id);
  });
  __syncthreads();
  for (int32_t own = threadIdx.x; own < count; own += kThreads) {
    const uint64_t key = shared.listed[own];
    int32_t rank = 0;
    for (int32_t i = 0; i < count; ++i) rank += shared.listed[i] > key ? 1 : 0;
    const int32_t id = view.IdOf(key);
    top[rank] = {id, static_cast<float>(view.logits[id] - log_sum)};
  }
  return log_sum;
}

struct SampleArguments {
  const float* logits;  // [rows, vocab]
  int64_t stride;
  int32_t vocab;
  bool cached;  // true: the row's logits fit in shared memory
  const std::byte* packed;
  int32_t num_rows;
  float* adjusted;  // [num_rows, adjusted_stride]: rows that Adjust changes, if not cached
  int64_t adjusted_stride;
  std::byte* results;
};

__global__ void __launch_bounds__(kThreads, 1) SampleKernel(const SampleArguments arguments) {
  if (threadIdx.x < kPowers) {
    BlockShared().powers[threadIdx.x] = exp2(threadIdx.x / double{kPowers});
  }
  WaitForPrevious();

  const auto index = static_cast<int32_t>(blockIdx.x);
  const PackedRow row = reinterpret_cast<const PackedRow*>(arguments.packed)[index];
  if (row.logits_row < 0) return;
  const int32_t vocab = arguments.vocab;
  const float* raw = arguments.logits + row.logits_row * arguments.stride;

  const bool forced = row.forced >= 0;
  const bool adjusts = !forced && (row.num_bias + row.num_seen > 0 || row.mask_at != 0);
  const bool draws = !forced && row.temperature > 0.0f;
  float* copy = nullptr;
  if (arguments.cached) {
    if (adjusts || draws) copy = CachedLogits();
  } else if (adjusts) {
    copy = arguments.adjusted + index * arguments.adjusted_stride;
  }

  const Largest model = FindLargest(raw, vocab, copy);
  int32_t token = kNotFinite;
  if (forced && model.drawable) {
    token = row.forced;
  } else if (model.drawable) {
    Largest largest = model;
    if (adjusts) {
      Adjust(row, arguments.packed, copy, vocab);
      largest = FindLargest(copy, vocab, nullptr);
    }
    token = largest.drawable ? largest.id : kBarred;
    if (largest.drawable && draws) {
      SetView(copy != nullptr ? copy : raw, vocab, largest.logit, row.temperature);
      token = Draw(row);
    }
  }

  float logprob = 0.0f;
  if (token >= 0 && row.num_top >= 0) {
    SetView(raw, vocab, model.logit, 1.0f);
    TokenLogprob* top = Alternatives(arguments.results, arguments.num_rows) + row.top_begin;
    const double log_sum = LogProbabilities(row.num_top, top);
    logprob = static_cast<float>(raw[token] - log_sum);
  }
  if (threadIdx.x == 0) {
    reinterpret_cast<SampleResult*>(arguments.results)[index] = {token, logprob};
  }
}

}  // namespace
}  // namespace ranking

void Sample(Context& context, const TensorView& logits, const std::byte* packed, int32_t num_rows,
            std::byte* results) {
  const size_t row_bytes = (static_cast<size_t>(logits.cols) * sizeof(float) + 15) / 16 * 16;
  const bool cached = ranking::kSharedBytes + row_bytes <= context.device.shared_memory_per_block();
  ranking::SampleArguments arguments = {
      .logits = logits.data,
      .stride = logits.stride,
      .vocab = static_cast<int32_t>(logits.cols),
      .cached = cached,
      .packed = packed,
      .num_rows = num_rows,
      .adjusted = nullptr,
      .adjusted_stride = static_cast<int64_t>(row_bytes / sizeof(float)),
      .results = results};
  if (!cached) {
    arguments.adjusted = reinterpret_cast<float*>(
        context.scratch.Get(Scratch::Use::kSampling, static_cast<size_t>(num_rows) * row_bytes));
    if (arguments.adjusted == nullptr) return;
  }
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(num_rows)),
                             .block = dim3(ranking::kThreads),
                             .shared_bytes = ranking::kSharedBytes + (cached ? row_bytes : 0)};
  Launch(context.device, "sampling", shape, ranking::SampleKernel, arguments);
}

}  // namespace eta::cuda
