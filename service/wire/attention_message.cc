// lint: untrusted-input, fuzz-covered
#include "service/wire/attention_message.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "google/protobuf/descriptor.h"

namespace eta {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

const FieldDescriptor* Find(const Message& message, const AttentionField& field) {
  return message.GetDescriptor()->FindFieldByName(field.name);
}

// False: the value is not known.
bool Get(const Message& message, const FieldDescriptor* field, std::optional<float>& value) {
  value = message.GetReflection()->GetFloat(message, field);
  return true;
}
bool Get(const Message& message, const FieldDescriptor* field, std::optional<int32_t>& value) {
  value = message.GetReflection()->GetInt32(message, field);
  return true;
}
// An enum of a choice has 0 for neither, 1 for no and 2 for yes.
bool Get(const Message& message, const FieldDescriptor* field, std::optional<bool>& value) {
  const Reflection& reflection = *message.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    value = reflection.GetBool(message, field);
    return true;
  }
  const int number = reflection.GetEnumValue(message, field);
  if (number == 1 || number == 2) value = number == 2;
  return value || number == 0;
}

void Set(float value, const FieldDescriptor* field, Message& message) {
  message.GetReflection()->SetFloat(&message, field, value);
}
void Set(int32_t value, const FieldDescriptor* field, Message& message) {
  message.GetReflection()->SetInt32(&message, field, value);
}
void Set(bool value, const FieldDescriptor* field, Message& message) {
  const Reflection& reflection = *message.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    reflection.SetBool(&message, field, value);
  } else {
    reflection.SetEnumValue(&message, field, value ? 2 : 1);
  }
}

}  // namespace

absl::StatusOr<AttentionSettings> ReadSettings(const std::string& prefix, const Message& message) {
  AttentionSettings settings;
  absl::Status status;
  ForEachSetting([&](const AttentionField& field, auto member) {
    const FieldDescriptor* const found = Find(message, field);
    if (found == nullptr) return;
    if (found->has_presence() && !message.GetReflection()->HasField(message, found)) return;
    if (!Get(message, found, settings.*member)) {
      status.Update(UnknownChoice(absl::StrCat(prefix, field.name)));
    }
  });
  RETURN_IF_ERROR(status);
  return settings;
}

void WriteSettings(const AttentionSettings& settings, Message& message) {
  ForEachSetting([&](const AttentionField& field, auto member) {
    const FieldDescriptor* const found = Find(message, field);
    if (found != nullptr && settings.*member) Set(*(settings.*member), found, message);
  });
}

v1::AttentionStats ToMessage(const AttentionSums& sums) {
  v1::AttentionStats message;
  message.set_decode_steps(sums.decode_rows);
  if (sums.decode_rows > 0) {
    message.set_head_density(sums.head_density());
    message.set_union_density(sums.union_density());
  }
  message.set_kv_bytes_read(sums.kv_bytes_read);
  message.set_kv_bytes_dense(sums.kv_bytes_dense);
  message.set_index_bytes_read(sums.index_bytes_read);
  message.set_keys_attended(sums.keys_attended);
  message.set_keys_eligible(sums.keys_eligible);
  message.set_keys_read(sums.keys_read);
  message.set_keys_cached(sums.keys_cached);
  message.set_values_read(sums.values_read);
  message.set_prefill_steps(sums.prefill_rows);
  if (sums.prefill_rows > 0) message.set_prefill_density(sums.prefill_density());
  message.set_prefill_keys_attended(sums.prefill_keys_attended);
  message.set_prefill_keys_eligible(sums.prefill_keys_eligible);
  message.set_fallback_steps(sums.fallback_rows);
  message.set_fallback_kv_bytes_read(sums.fallback_kv_bytes_read);
  message.set_shadow_row_layers(sums.shadow_row_layers);
  if (sums.shadow_row_layers > 0) {
    message.set_mass_kept(sums.mass_kept());
    message.set_output_error(sums.output_error());
  }
  return message;
}

}  // namespace eta
