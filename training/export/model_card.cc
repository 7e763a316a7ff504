#include "training/export/model_card.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eta::training {
namespace {

std::string Row(const HeldOutScore& score, const HeldOutScore* dense, bool sparse) {
  std::string row = absl::StrCat("| ", score.text.empty() ? "**all**" : score.text, " | ");
  if (dense != nullptr) absl::StrAppendFormat(&row, "%.3f | ", dense->full_perplexity);
  absl::StrAppendFormat(&row, "%.3f |", score.full_perplexity);
  if (!sparse) return row + "\n";
  absl::StrAppendFormat(&row, " %.3f | %+.2f %% | %.3f | %.3f |\n", score.sparse_perplexity,
                        100.0 * (score.sparse_perplexity / score.full_perplexity - 1.0),
                        score.head_density, score.union_density);
  return row;
}

// Where the figures come from, and so how far they may be trusted.
const char* Source(const ModelCard& card) {
  if (card.tested) {
    return "The figures are of test text (--test): it was not trained on, nothing was steered by "
           "it, and the index metric was not measured on it.";
  }
  if (!card.original.empty()) {
    return "There was no test text (--test). The figures are of the held-out text that the "
           "sparsity weight was steered by and the index metric was measured on; on other text "
           "they may be worse.";
  }
  return "There was no test text (--test). The figures are of the held-out text that was measured "
         "on during training; where settings were chosen by it, they may be worse on other text.";
}

// Of a model that the server does not run.
std::string QualityAsTrained(const ModelCard& card) {
  const HeldOutResult& measured = *card.measured;
  std::string text = absl::StrFormat(
      "%s\n\nPerplexity per token, in windows of %d tokens, by training's own forward pass, with "
      "the attention that the model was trained with. The first %d of a window are not "
      "scored.\n\n"
      "| text | perplexity |\n|---|---|\n",
      Source(card), card.context, card.prefill);
  for (const HeldOutScore& score : measured.texts) text += Row(score, nullptr, /*sparse=*/false);
  text += Row(measured.all, nullptr, /*sparse=*/false);
  if (measured.needles > 0) {
    absl::StrAppend(&text, "\nNeedles found of ", measured.needles, ": ", measured.full_hits,
                    ".\n");
  }
  if (measured.caches) {
    absl::StrAppendFormat(
        &text,
        "\nOf the keys and values of full attention a row reads %.3f, a mean over the scored rows, "
        "and its caches hold %.3f after the last one: compressed ones, those of selected blocks "
        "and those of the window, each with keys and values of its own.\n",
        measured.caches->reads, measured.caches->holds);
  }
  return text;
}

std::string Quality(const ModelCard& card) {
  if (!card.measured) {
    return "Nothing was measured: there was no text for it (--held_out, --test).\n";
  }
  const HeldOutResult& measured = *card.measured;
  if (measured.as_trained) return QualityAsTrained(card);
  std::string text = absl::StrFormat(
      "%s\n\nPerplexity per token, in windows of %d tokens. The first %d of a window are a prompt; "
      "the others decode, and are scored.%s\n\n",
      Source(card), card.context, card.prefill,
      measured.sparse
          ? " Sparse attention is the server's default. Densities are means over heads, "
            "layers and positions of what a head attended to and of what was read for "
            "its group."
          : "");
  absl::StrAppend(&text, "| text | ", card.dense ? "original | " : "", "full |",
                  measured.sparse ? " sparse | to full | head density | union density |" : "",
                  "\n|---|---|", card.dense ? "---|" : "",
                  measured.sparse ? "---|---|---|---|" : "", "\n");
  for (size_t i = 0; i < measured.texts.size(); ++i) {
    text += Row(measured.texts[i], card.dense ? &card.dense->texts[i] : nullptr, measured.sparse);
  }
  text += Row(measured.all, card.dense ? &card.dense->all : nullptr, measured.sparse);
  if (measured.needles > 0) {
    absl::StrAppend(&text, "\nNeedles found of ", measured.needles, ": ");
    if (card.dense) absl::StrAppend(&text, card.dense->full_hits, " by the original, ");
    absl::StrAppend(&text, measured.full_hits, " with full attention");
    if (measured.sparse) absl::StrAppend(&text, ", ", measured.sparse_hits, " with sparse");
    absl::StrAppend(&text, ".\n");
  }
  if (card.verdict) absl::StrAppend(&text, "\n", VerdictText(*card.verdict), "\n");
  return text;
}

}  // namespace

std::string ModelCardText(const ModelCard& card) {
  const ModelConfig& config = card.config;
  std::string text = absl::StrCat("# ", card.name, "\n\n", card.method, "\n\n");
  absl::StrAppend(&text, "| property | value |\n|---|---|\n");
  if (!card.original.empty()) absl::StrAppend(&text, "| adapted from | ", card.original, " |\n");
  absl::StrAppendFormat(&text, "| parameters | %.1fM |\n",
                        static_cast<double>(card.parameters) / 1e6);
  absl::StrAppend(&text, "| shape | ", config.num_layers, " layers, width ", config.model_dim, ", ",
                  config.num_query_heads, " query heads and ", config.num_kv_heads,
                  " key-value heads of ", config.head_dim, ", SwiGLU ", config.ffn_dim, " |\n");
  absl::StrAppend(&text, "| vocabulary | ", config.vocab_size, " |\n| context | ",
                  config.max_context, " |\n");
  absl::StrAppend(&text, "\n## Training\n\n| what | value |\n|---|---|\n");
  for (const auto& [name, value] : card.facts) {
    absl::StrAppend(&text, "| ", name, " | ", value, " |\n");
  }
  absl::StrAppend(&text, "| texts |");
  for (const std::string& name : card.texts) absl::StrAppend(&text, " `", name, "`");
  absl::StrAppend(&text, " |\n");
  absl::StrAppend(&text, "\n## Quality\n\n",
                  card.served ? "" : "The server does not run this kind of attention.\n\n",
                  Quality(card));
  absl::StrAppend(
      &text,
      "\n## Licence\n\nThe texts that a model was trained on, and the model that it was "
      "adapted from, have\nlicences of their own. Fill in here what they ask for.\n");
  return text;
}

}  // namespace eta::training
