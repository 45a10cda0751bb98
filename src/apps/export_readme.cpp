#include "apps/export_readme.h"

#include <fmt/format.h>

#include "apps/version.h"
#include "base/error.h"

namespace osdn::apps {
namespace export_readme_detail {

/// What a directory's readers call the model, and the module of theirs that registers its model_type.
struct Reader {
  const char* model_type;
  const char* title;
  const char* module;
};

Reader reader_of(const std::string& model_type) {
  static constexpr Reader kReaders[] = {
      {"delta_net", "DeltaNet", "fla"},
      {"osla_delta_net", "OSDN-DeltaNet", "fla.models.os_delta_net"},
      {"gated_deltanet", "Gated DeltaNet", "fla"},
      {"os_gated_deltanet", "OSDN-Gated DeltaNet", "fla.models.os_gated_deltanet"},
      {"kda", "Kimi Delta Attention", "fla"},
      {"os_kda", "OSDN-Kimi Delta Attention", "fla.models.os_kda"},
      {"transformer", "Transformer", "fla"},
  };
  for (const Reader& reader : kReaders)
    if (model_type == reader.model_type) return reader;
  throw InternalError("export: no reader of model_type {}", model_type);
}

std::string id_text(int32_t id) { return id < 0 ? "none" : std::to_string(id); }

std::string tokenizer_statement(const data::Tokenizer& tokenizer) {
  std::string text = fmt::format(
      "`tokenizer.model` is the sentencepiece model that the model was trained with, byte for byte (digest "
      "{}, {} "
      "pieces, bos {}, eos {}, pad {}). No converted tokenizer (`tokenizer.json`) is part of this directory: "
      "conversions are known to change token ids. Encode with the sentencepiece library, without options, "
      "and put "
      "bos in front of each document.\n",
      tokenizer.digest(), tokenizer.vocab_size(), id_text(tokenizer.bos_id()), id_text(tokenizer.eos_id()),
      id_text(tokenizer.pad_id()));
  if (tokenizer.lossless())
    text +=
        "\nTwo characters were treated apart in training because the library cannot represent them: a "
        "written "
        "U+2581 (its own sign for a space) and NUL went in as byte pieces. Every other text gets the same "
        "ids from "
        "the library.\n";
  return text;
}

}  // namespace export_readme_detail

std::string export_readme(const config::Model& model, const data::Tokenizer* tokenizer,
                          const ExportDescription& description) {
  const std::string version = version_text();  // the first of its lines names program and commit
  const export_readme_detail::Reader reader = export_readme_detail::reader_of(description.model_type);
  std::string text =
      fmt::format("# {} ({})\n\nExported by {} from `{}` (step {}), weights in {}.\n\n## Model\n\n",
                  reader.title, reader.model_type, version.substr(0, version.find('\n')), description.source,
                  description.step, description.dtype);
  if (model.osdn)
    text += fmt::format(
        "`config.json` and the tensor names are those of the OSDN authors' code, which registers model_type "
        "`{}` when `{}` is imported.\n",
        reader.model_type, reader.module);
  else
    text +=
        "`config.json` and the tensor names are those of flash-linear-attention: `import fla`, then "
        "`AutoModelForCausalLM.from_pretrained` on this directory.\n";
  if (model.allow_negative_eigenvalues && model.backbone == config::Backbone::kDeltaNet)
    text +=
        "\n`allow_neg_eigval` is true: readers from before that key was added to `DeltaNetConfig` (April "
        "2026) ignore "
        "it and compute something else.\n";
  if (description.dtype != "float32")
    text += fmt::format(
        "\nTensors are {} but for those that the model computes with in float32: norms, biases, the "
        "rates of a decay, and the start and gate of the preconditioner.\n",
        description.dtype);
  text += fmt::format("\nChecked before this directory was given its name: {}.\n", description.verification);
  for (size_t i = 0; i < description.notes.size(); ++i)
    text += (i == 0 ? "\nNot carried by this format, without effect on the logits:\n\n- " : "- ") +
            description.notes[i] + "\n";
  text += "\n## Tokenizer\n\n";
  text += tokenizer ? export_readme_detail::tokenizer_statement(*tokenizer)
                    : "The run names no tokenizer; this directory has none.\n";
  return text;
}

}  // namespace osdn::apps
