#include "engine/model/gguf_writer/gguf_export.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/files/output_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/gguf/gguf_config.h"
#include "engine/checkpoint/gguf/gguf_rope.h"
#include "engine/checkpoint/gguf/gguf_tensor_names.h"
#include "engine/model/generation_config.h"
#include "engine/model/gguf_writer/gguf_head.h"
#include "engine/model/gguf_writer/gguf_model_keys.h"
#include "engine/model/gguf_writer/gguf_tokenizer_keys.h"
#include "engine/model/gguf_writer/pack_blocks.h"
#include "engine/model/model_config.h"
#include "engine/model/weights/index_metric.h"

namespace eta {
namespace {

constexpr char kHead[] = "lm_head.weight";
constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr std::string_view kFrequencies = ".self_attn.rotary_emb.inv_freq";
constexpr std::string_view kPredictor = ".self_attn.tau_proj.";
constexpr std::string_view kRouter = ".mlp.gate.weight";

GgmlLayout LayoutOf(GgmlType type) {
  return *FindGgmlLayout(static_cast<uint32_t>(type));
}

// general.file_type, by which other programs call the file.
uint32_t FileType(GgmlType matrices) {
  switch (matrices) {
    case GgmlType::kF16:
      return 1;
    case GgmlType::kQ8_0:
      return 7;
    case GgmlType::kBF16:
      return 32;
    default:
      return 0;
  }
}

// A tensor of the file, in the order of the file.
struct Planned {
  std::vector<std::string> names;  // Hugging Face's; of a layer's experts all, by their numbers
  const TensorReader* reader = nullptr;
  GgmlLayout layout = {};
  int64_t permuted_heads = 0;  // 0: rows stay in order
  float added = 0.0f;          // to every number
};

class GgufExport {
 public:
  GgufExport(const Checkpoint& checkpoint, GgmlType matrices)
      : checkpoint_(checkpoint), matrices_(LayoutOf(matrices)) {}

  absl::StatusOr<ExportedGguf> Write(const std::string& path) {
    RETURN_IF_ERROR(ReadModel());
    RETURN_IF_ERROR(MakeHead());
    const std::string head = head_.Bytes();
    RETURN_IF_ERROR(CheckReadsBack(head));
    ASSIGN_OR_RETURN(auto file, OutputFile::Create(path));
    RETURN_IF_ERROR(file.Write(head));
    if (!keys_.rope_factors.empty()) {
      RETURN_IF_ERROR(WritePadded(std::as_bytes(std::span(keys_.rope_factors)), file));
    }
    for (const Planned& tensor : planned_) RETURN_IF_ERROR(WriteTensor(tensor, file));
    RETURN_IF_ERROR(file.Commit());
    return ExportedGguf{.num_tensors = static_cast<int64_t>(planned_.size()),
                        .bytes = head.size() + head_.data_bytes()};
  }

 private:
  absl::Status ReadModel() {
    ASSIGN_OR_RETURN(config_, ParseModelConfig(checkpoint_.config_json()));
    RETURN_IF_ERROR(ValidateTensors(config_, checkpoint_.tensors()));
    if (checkpoint_.index_metric() != nullptr) {
      RETURN_IF_ERROR(ValidateIndexMetric(config_, *checkpoint_.index_metric()));
    }
    ModelConfig generating = config_;
    if (const auto& generation = checkpoint_.generation_config_json()) {
      RETURN_IF_ERROR(ReadGenerationConfig(*generation, generating));
    }
    ends_ = generating.eos_ids;
    // config.json's own is the end of a text.
    if (!config_.eos_ids.empty()) {
      const auto own = std::ranges::find(ends_, config_.eos_ids.front());
      if (own != ends_.end()) std::rotate(ends_.begin(), own, own + 1);
    }
    return absl::OkStatus();
  }

  absl::Status MakeHead() {
    ASSIGN_OR_RETURN(keys_, SetModelKeys(checkpoint_.config_json(), config_, head_));
    head_.Set("general.file_type", FileType(matrices_.type));
    head_.Set("general.quantization_version", uint32_t{2});
    GgufSpecialIds ids;
    if (config_.bos_id >= 0) ids.bos = config_.bos_id;
    ids.ends = ends_;
    RETURN_IF_ERROR(
        SetTokenizerKeys(checkpoint_.tokenizer_files(), config_.vocab_size, ids, head_));
    if (!keys_.rope_factors.empty()) {
      head_.AddTensor(kGgufRopeFactors, {static_cast<int64_t>(keys_.rope_factors.size())},
                      LayoutOf(GgmlType::kF32));
    }
    RETURN_IF_ERROR(PlanTensors(checkpoint_));
    return checkpoint_.index_metric() == nullptr ? absl::OkStatus()
                                                 : PlanTensors(*checkpoint_.index_metric());
  }

  absl::Status PlanTensors(const TensorReader& reader) {
    for (const auto& [name, info] : reader.tensors()) {
      if (name.ends_with(kFrequencies)) continue;
      if (name == kHead && config_.tie_word_embeddings) {
        ASSIGN_OR_RETURN(const auto repeats, RepeatsEmbedding());
        if (repeats) continue;
      }
      const auto stored = ToGgufName(name, config_.post_norms);
      if (!stored) {
        return absl::UnimplementedError(
            absl::StrCat("tensor ", Quoted(name), " has no name in a GGUF file"));
      }
      const std::optional<int64_t> expert = ExpertOf(name);
      if (expert.value_or(0) > 0) continue;  // planned with the layer's first
      Planned tensor = {.names = {name}, .reader = &reader, .layout = LayoutOf(GgmlType::kF32)};
      const bool matrix = &reader == &checkpoint_ && info.shape.size() == 2 &&
                          name.find(kPredictor) == std::string::npos;
      const bool router = name.ends_with(kRouter);
      if (matrix && !router && info.shape.back() % matrices_.block_elements == 0) {
        tensor.layout = matrices_;
      }
      tensor.added = config_.unit_norms && name.ends_with("norm.weight") ? 1.0f : 0.0f;
      const HuggingFaceName named = *ToHuggingFaceName(*stored, config_.post_norms);
      const PermutedHeads permuted = named.permuted;
      if (keys_.permuted_heads() && permuted != PermutedHeads::kNone) {
        tensor.permuted_heads =
            permuted == PermutedHeads::kQuery ? config_.num_query_heads : config_.num_kv_heads;
      }
      std::vector<int64_t> shape = info.shape;
      if (expert) {
        for (int32_t i = 1; i < config_.num_experts; ++i) {
          tensor.names.push_back(ExpertName(named.name, i));
        }
        shape.insert(shape.begin(), config_.num_experts);
      }
      head_.AddTensor(*stored, shape, tensor.layout);
      planned_.push_back(std::move(tensor));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> RepeatsEmbedding() const {
    ASSIGN_OR_RETURN(const auto head, checkpoint_.Read(kHead));
    ASSIGN_OR_RETURN(const auto embedding, checkpoint_.Read(kEmbedding));
    return head == embedding;
  }

  // What a reader makes of the head must be the model: a key that is forgotten would change it.
  absl::Status CheckReadsBack(const std::string& bytes) const {
    ASSIGN_OR_RETURN(const auto header, ParseGgufHeader(bytes, bytes.size() + head_.data_bytes()));
    GgufMetadata metadata(header);
    ASSIGN_OR_RETURN(const auto tokenizer, ReadGgufTokenizer(metadata));
    ASSIGN_OR_RETURN(const auto made,
                     MakeConfigJson(metadata, header, tokenizer, keys_.rope_factors));
    ASSIGN_OR_RETURN(auto read, ParseModelConfig(made.json));
    ModelConfig wanted = config_;
    // These are of the tokenizer, and SetTokenizerKeys has seen to them.
    wanted.bos_id = read.bos_id;
    wanted.eos_ids = read.eos_ids;
    // A file has the factors only, from which its parameters follow but for a common divisor.
    if (!keys_.rope_factors.empty()) wanted.rope_scaling = read.rope_scaling;
    wanted.tie_word_embeddings = read.tie_word_embeddings;
    // It is rounded to a type that the file does not name.
    wanted.embedding_scale = read.embedding_scale;
    if (read == wanted) return absl::OkStatus();
    return absl::UnimplementedError(
        "config.json: something in it has no key in a GGUF file, such as rope_scaling with factors "
        "of its own");
  }

  absl::Status WriteTensor(const Planned& tensor, OutputFile& file) const {
    uint64_t written = 0;
    for (const std::string& name : tensor.names) {
      ASSIGN_OR_RETURN(const auto blocks, Blocks(tensor, name));
      RETURN_IF_ERROR(file.Write(blocks));
      written += blocks.size();
    }
    return file.Write(std::string(GgufHead::Padding(written), '\0'));
  }

  absl::StatusOr<std::vector<std::byte>> Blocks(const Planned& tensor,
                                                const std::string& name) const {
    ASSIGN_OR_RETURN(const auto data, tensor.reader->Read(name));
    const TensorInfo& info = tensor.reader->tensors().at(name);
    std::vector<float> values(data.size() / SizeOf(info.dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = LoadElement(info.dtype, data.data(), static_cast<int64_t>(i)) + tensor.added;
    }
    if (tensor.permuted_heads > 0) {
      values = Interleaved(values, info.shape.front(), tensor.permuted_heads);
    }
    auto blocks = PackBlocks(tensor.layout, values);
    if (blocks.ok()) return blocks;
    return absl::Status(
        blocks.status().code(),
        absl::StrCat("tensor ", Quoted(name), ": ", std::string(blocks.status().message())));
  }

  // Row h, s, j of [heads, 2, pairs] goes to h, j, s of [heads, pairs, 2].
  static std::vector<float> Interleaved(const std::vector<float>& values, int64_t rows,
                                        int64_t heads) {
    const auto width = static_cast<int64_t>(values.size()) / rows;
    const int64_t head_rows = rows / heads;
    std::vector<float> ordered(values.size());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t in_head = row % head_rows;
      const int64_t half = head_rows / 2;
      const int64_t target = row - in_head + in_head % half * 2 + in_head / half;
      std::copy_n(values.begin() + row * width, width, ordered.begin() + target * width);
    }
    return ordered;
  }

  static absl::Status WritePadded(std::span<const std::byte> bytes, OutputFile& file) {
    RETURN_IF_ERROR(file.Write(bytes));
    return file.Write(std::string(GgufHead::Padding(bytes.size()), '\0'));
  }

  const Checkpoint& checkpoint_;
  const GgmlLayout matrices_;
  ModelConfig config_;
  std::vector<int32_t> ends_;
  GgufModelKeys keys_;
  GgufHead head_;
  std::vector<Planned> planned_;
};

}  // namespace

absl::StatusOr<ExportedGguf> ExportGguf(const Checkpoint& checkpoint, const std::string& path,
                                        GgmlType matrices) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    return absl::AlreadyExistsError("the file to write is there already");
  }
  return GgufExport(checkpoint, matrices).Write(path);
}

}  // namespace eta
