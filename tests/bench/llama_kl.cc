// How far llama.cpp on one GGUF file is from itself on another one of the same model: KL of the
// next token, the likeliest tokens, losses. `eta-eval table weights` measures the same of this
// project's engine, on the same rows and by the same formula.
//
//   llama_kl MODEL.gguf FORM.gguf TEXT.txt CONTEXT WINDOWS THREADS on|off
//
// The text is cut as calibration/evaluation/text/windows.h cuts it, and WINDOWS of its windows are
// taken, evenly spaced. Of each the first half of CONTEXT rows is a prompt, the second is scored.
// The last word is flash attention. Keys and values are float16, llama.cpp's default and this
// project's. Prints one JSON object. llama_kl.py compiles it against the library that
// llama_native.py keeps.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "calibration/solvers/divergence.h"
#include "calibration/solvers/sample_split.h"
#include "llama.h"

namespace {

constexpr int32_t kStep = 256;  // rows whose logits are held

[[noreturn]] void Fail(const std::string& reason) {
  std::fprintf(stderr, "llama_kl: %s\n", reason.c_str());
  std::exit(1);
}

int32_t Number(std::string_view name, std::string_view text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    Fail(std::string(name) + ": " + std::string(text) + " is no whole number from 1 on");
  }
  return value;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open() || file.bad()) Fail(path + ": cannot be read");
  return std::move(text).str();
}

struct Settings {
  int32_t context;
  int32_t threads;
  bool flash;
};

class Llama {
 public:
  Llama(const std::string& path, const Settings& settings) {
    model_.reset(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
    if (!model_) Fail(path + ": llama.cpp does not load it");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(settings.context);
    params.n_batch = params.n_ubatch = kStep;
    params.n_threads = params.n_threads_batch = settings.threads;
    params.flash_attn_type =
        settings.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context_.reset(llama_init_from_model(model_.get(), params));
    if (!context_) Fail(path + ": llama.cpp makes no context for it");
    batch_ = llama_batch_init(kStep, 0, 1);
  }
  ~Llama() { llama_batch_free(batch_); }
  Llama(const Llama&) = delete;
  Llama& operator=(const Llama&) = delete;

  size_t vocab_size() const { return static_cast<size_t>(llama_vocab_n_tokens(vocab())); }

  std::vector<int32_t> Tokens(const std::string& text) const {
    std::vector<int32_t> tokens(text.size() + 2);
    const int32_t count =
        llama_tokenize(vocab(), text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                       static_cast<int32_t>(tokens.size()), /*add_special=*/true,
                       /*parse_special=*/false);
    if (count < 0) Fail("the text has more tokens than bytes");
    tokens.resize(static_cast<size_t>(count));
    return tokens;
  }

  void Clear() { llama_memory_clear(llama_get_memory(context_.get()), true); }

  // Rows [begin, begin + tokens), at most kStep. Their logits stay until the next call, if wanted.
  void Run(std::span<const int32_t> tokens, int32_t begin, bool wants_logits) {
    batch_.n_tokens = static_cast<int32_t>(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      batch_.token[i] = tokens[i];
      batch_.pos[i] = begin + static_cast<int32_t>(i);
      batch_.n_seq_id[i] = 1;
      batch_.seq_id[i][0] = 0;
      batch_.logits[i] = wants_logits ? 1 : 0;
    }
    if (llama_decode(context_.get(), batch_) != 0) Fail("llama.cpp does not decode");
  }
  std::span<const float> Logits(int32_t row) const {
    const float* logits = llama_get_logits_ith(context_.get(), row);
    if (logits == nullptr) Fail("llama.cpp has no logits of a row");
    return {logits, vocab_size()};
  }

 private:
  const llama_vocab* vocab() const { return llama_model_get_vocab(model_.get()); }

  std::unique_ptr<llama_model, decltype(&llama_model_free)> model_{nullptr, llama_model_free};
  std::unique_ptr<llama_context, decltype(&llama_free)> context_{nullptr, llama_free};
  llama_batch batch_ = {};
};

double Loss(std::span<const float> logits, int32_t target) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum) - logits[static_cast<size_t>(target)];
}

size_t Best(std::span<const float> logits) {
  return static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
}

struct Sums {
  int64_t rows = 0;
  int64_t same_best = 0;
  double divergence = 0.0;  // nats, of all rows
  double model_loss = 0.0;
  double form_loss = 0.0;
};

void AddWindow(Llama& model, Llama& form, std::span<const int32_t> window, Sums& sums) {
  const auto rows = static_cast<int32_t>(window.size()) - 1;
  const int32_t prefill = rows / 2;
  for (Llama* side : {&model, &form}) side->Clear();
  for (int32_t begin = 0, count = 0; begin < rows; begin += count) {
    const bool scored = begin >= prefill;
    count = std::min(kStep, (scored ? rows : prefill) - begin);
    const auto tokens = window.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    for (Llama* side : {&model, &form}) side->Run(tokens, begin, scored);
    for (int32_t row = 0; scored && row < count; ++row) {
      const std::span<const float> first = model.Logits(row);
      const std::span<const float> other = form.Logits(row);
      const int32_t target = window[static_cast<size_t>(begin + row + 1)];
      ++sums.rows;
      sums.same_best += Best(first) == Best(other) ? 1 : 0;
      sums.divergence += eta::KlDivergence(first, other);
      sums.model_loss += Loss(first, target);
      sums.form_loss += Loss(other, target);
    }
  }
}

std::vector<std::vector<int32_t>> Cut(const std::vector<int32_t>& tokens, size_t context) {
  std::vector<std::vector<int32_t>> windows;
  for (size_t begin = 0; begin + context < tokens.size(); begin += context) {
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
    windows.emplace_back(first, first + static_cast<std::ptrdiff_t>(context) + 1);
  }
  if (windows.empty()) Fail("the text fills no window");
  return windows;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 7 || (words[6] != "on" && words[6] != "off")) {
    Fail("usage: llama_kl MODEL.gguf FORM.gguf TEXT.txt CONTEXT WINDOWS THREADS on|off");
  }
  const Settings settings = {Number("CONTEXT", words[3]), Number("THREADS", words[5]),
                             words[6] == "on"};
  const int32_t wanted = Number("WINDOWS", words[4]);
  if (settings.context < 2) Fail("CONTEXT: leaves no row to score");
  const auto quiet = [](ggml_log_level level, const char* text, void*) {
    if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
  };
  llama_log_set(quiet, nullptr);
  llama_backend_init();
  Llama model(words[0], settings);
  Llama form(words[1], settings);
  const std::vector<int32_t> tokens = model.Tokens(ReadText(words[2]));
  if (model.vocab_size() != form.vocab_size() || tokens != form.Tokens(ReadText(words[2]))) {
    Fail(words[1] + ": another vocabulary than that of " + words[0]);
  }
  Sums sums;
  for (const auto& window :
       eta::KeepSpread(Cut(tokens, static_cast<size_t>(settings.context)), wanted)) {
    AddWindow(model, form, window, sums);
  }
  const auto n = static_cast<double>(sums.rows);
  std::printf(
      "{\"tokens\": %lld, \"kl\": %.9g, \"top_1\": %.9g, \"model_loss\": %.9g, \"loss\": %.9g}\n",
      static_cast<long long>(sums.rows), sums.divergence / n,
      static_cast<double>(sums.same_best) / n, sums.model_loss / n, sums.form_loss / n);
  return 0;
}
