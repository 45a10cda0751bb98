#include <vector>

#include "checkpoint/fla_config.h"

namespace osdn::checkpoint {

const std::vector<HarmlessKey>& harmless_fla_keys() {
  static constexpr const char* kRecord = "says where the files come from";
  static constexpr const char* kKernel = "chooses among kernels of the same mathematics";
  static constexpr const char* kLoss = "concerns the loss while training, not the model";
  static constexpr const char* kOutput = "concerns what a call of the Python model returns";
  static constexpr const char* kClassifier = "concerns classifiers";
  static constexpr const char* kDecoding = "a default of the Python model's generate()";
  static constexpr const char* kOther = "belongs to other kinds of models; written by older versions for all";
  static constexpr const char* kMode = "unused in the modes of osgm_decay_mode that are accepted";
  static const std::vector<HarmlessKey> keys = {
      {"architectures", kRecord},
      {"auto_map", kRecord},
      {"_name_or_path", kRecord},
      {"_commit_hash", kRecord},
      {"_attn_implementation_autoset", kRecord},
      {"transformers_version", kRecord},
      {"tokenizer_class", kRecord},
      {"attn_mode", kKernel},
      {"chunk_size", kKernel},
      {"chunk_size_feed_forward", kKernel},
      {"fuse_norm", "the norm after the mixer sees the sum before or after it is rounded: one bf16 rounding"},
      {"fuse_swiglu", kKernel},
      {"torchscript", kKernel},
      {"use_bfloat16", kKernel},
      {"fuse_cross_entropy", kLoss},
      {"fuse_linear_cross_entropy", kLoss},
      {"use_l2warp", kLoss},
      {"use_output_norm", "read by no version of the layer: the norm is always there"},
      {"use_cache", kOutput},
      {"output_attentions", kOutput},
      {"output_hidden_states", kOutput},
      {"output_scores", kOutput},
      {"return_dict", kOutput},
      {"return_dict_in_generate", kOutput},
      {"id2label", kClassifier},
      {"label2id", kClassifier},
      {"num_labels", kClassifier},
      {"problem_type", kClassifier},
      {"finetuning_task", kClassifier},
      {"task_specific_params", kClassifier},
      {"bad_words_ids", kDecoding},
      {"begin_suppress_tokens", kDecoding},
      {"diversity_penalty", kDecoding},
      {"do_sample", kDecoding},
      {"early_stopping", kDecoding},
      {"encoder_no_repeat_ngram_size", kDecoding},
      {"exponential_decay_length_penalty", kDecoding},
      {"forced_bos_token_id", kDecoding},
      {"forced_eos_token_id", kDecoding},
      {"length_penalty", kDecoding},
      {"max_length", kDecoding},
      {"min_length", kDecoding},
      {"no_repeat_ngram_size", kDecoding},
      {"num_beam_groups", kDecoding},
      {"num_beams", kDecoding},
      {"num_return_sequences", kDecoding},
      {"prefix", kDecoding},
      {"remove_invalid_values", kDecoding},
      {"repetition_penalty", kDecoding},
      {"suppress_tokens", kDecoding},
      {"temperature", kDecoding},
      {"top_k", kDecoding},
      {"top_p", kDecoding},
      {"typical_p", kDecoding},
      {"cross_attention_hidden_size", kOther},
      {"decoder_start_token_id", kOther},
      {"is_decoder", kOther},
      {"sep_token_id", kOther},
      {"tf_legacy_loss", kOther},
      {"tie_encoder_decoder", kOther},
      {"osgm_ema_alpha", kMode},
      {"osgm_ema_normalize", kMode},
      {"osgm_post_gate_regret_chunk_size", kKernel},
  };
  return keys;
}

}  // namespace osdn::checkpoint
