// The ops of the CPU backend, one file each, in the order of a layer. Each op spreads its work over
// context.workers. kernels/params/ has their semantics and shapes.
#pragma once

#include <memory>
#include <span>

#include "kernels/backend.h"
#include "kernels/cpu/context.h"
#include "kernels/params/calibration.h"
#include "kernels/params/experts.h"
#include "kernels/params/layer.h"
#include "kernels/params/sampling.h"
#include "kernels/params/selection.h"

namespace eta::cpu {

// REQUIRES: CheckParts(). Throws std::bad_alloc.
std::unique_ptr<Matrix> PackMatrix(Workers& workers, std::span<const HostMatrix> parts,
                                   WeightFormat format);

void Embed(const Context& context, const EmbedParams& params);                  // matmul.cc
void RmsNorm(const Context& context, const RmsNormParams& params);              // pointwise.cc
void MatMul(const Context& context, const MatMulParams& params);                // matmul.cc
void AddBias(const Context& context, const AddBiasParams& params);              // pointwise.cc
void NormHeads(const Context& context, const NormHeadsParams& params);          // pointwise.cc
void Rope(const Context& context, const RopeParams& params);                    // pointwise.cc
void AppendKv(const Context& context, const AppendKvParams& params);            // block_index.cc
void PredictThresholds(const Context& context, const ThresholdParams& params);  // pointwise.cc
void SelectBlocks(const Context& context,
                  const SelectBlocksParams& params);  // select/block_select.cc
void SelectPrefillBlocks(const Context& context,
                         const SelectPrefillParams& params);  // select/prefill_select.cc
void DecodeAttention(const Context& context, const AttentionParams& params);  // decode/
void PrefillAttention(const Context& context,
                      const AttentionParams& params);                    // prefill/
void CountRecall(const Context& context, const RecallParams& params);    // calibration/recall.cc
void MeasureShadow(const Context& context, const ShadowParams& params);  // calibration/shadow.cc
void CollectCalibration(const Context& context,
                        const CalibrationParams& params);         // calibration/calibration.cc
void SwiGlu(const Context& context, const SwiGluParams& params);  // pointwise.cc
void RouteRows(const Context& context, const RouteRowsParams& params);              // experts.cc
void MultiplyExperts(const Context& context, const MultiplyExpertsParams& params);  // matmul.cc
void AddExperts(const Context& context, const AddExpertsParams& params);            // experts.cc
void Sample(const Context& context, const SampleParams& params);                    // sampling.cc

}  // namespace eta::cpu
