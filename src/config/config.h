// The whole configuration of a run as plain aggregates, one struct per YAML section, each field with its
// default. Loading is strict (config/yaml.h); docs/config.md is generated from the field table in
// config/schema.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace osdn::config {

enum class Device { kAuto, kCuda, kCpu };
enum class Resume { kAuto, kNever };
enum class Backbone { kDeltaNet, kGatedDeltaNet, kKda, kTransformer };
enum class QkNorm { kL2, kSum };
enum class QkActivation { kSilu, kRelu, kElu, kIdentity };
enum class Hypergradient { kBetaAware, kBetaFree };
enum class Retention { kNone, kConstant, kOwnGate, kStateGate };
enum class Documents { kReset, kCarry };
enum class Schedule { kCosine, kLinear, kWarmupStableDecay, kConstant };
enum class Precision { kAuto, kFloat32, kBfloat16 };
enum class Exchange { kAuto, kNccl };
enum class Recompute { kNone, kMixer, kBlock };
enum class TokenizerType { kBpe, kUnigram };

struct Run {
  std::string name;                      // names the run directory; required for training
  std::string directory = "runs";        // parent of the run directory
  int64_t seed = 42;                     // initialisation and data order
  Device device = Device::kAuto;         // auto: a GPU when one is visible
  Resume resume = Resume::kAuto;         // never: refuse a run directory that already holds checkpoints
  std::optional<std::string> init_from;  // a checkpoint directory whose weights the run starts from
};

/// The preconditioned write. Absent: the plain backbone. Symbols as in docs/ops/precond_scan.md.
struct Osdn {
  std::optional<std::string> preset;  // a named set of the values below; keys given beside it override
  double step_size = 1.0;             // eta
  std::array<double, 2> box = {2.0 / 3.0, 1.5};  // per-token clip of d
  Hypergradient hypergradient = Hypergradient::kBetaAware;
  double initial_scale = 1.0;       // d0 at initialisation
  bool learn_initial_scale = true;  // never decayed
  bool clamp_initial_scale =
      true;  // d0 is used clamped to the box, zero gradient outside (authors' presets: false)
  Retention retention = Retention::kNone;
  double retention_bias = 6.9;  // bias of the retention gate at initialisation; constant retention: its logit
  bool anchored = false;        // 1 + r (d - 1) instead of r d
  bool divide_by_key_norm = false;  // divide the step by ||k||^2 + 1e-5
  bool detach = false;              // stop the gradient through d
  bool allow_unstable = false;      // permit d_max * beta_max > 2 or eta * beta_max^2 > 2
};

/// Softmax attention: every layer of the backbone transformer, the layers named here of the other backbones.
struct Attention {
  std::vector<int64_t> layers;          // counted from 0; for the backbone transformer empty: all of them
  std::optional<int64_t> num_heads;     // null: model.num_heads; heads of width hidden_size / num_heads
  std::optional<int64_t> num_kv_heads;  // grouped keys and values; null: one a head
  std::optional<int64_t> window_size;   // tokens that a token sees, itself included; null: all before it
  double rope_theta = 10000.0;          // base of the rotary embedding
  bool qkv_bias = false;
  bool qk_norm = false;  // RMSNorm of queries and keys per head
};

struct Model {
  Backbone backbone = Backbone::kDeltaNet;
  std::optional<int64_t> vocab_size;  // from the tokenizer when absent
  int64_t hidden_size = 1024;
  int64_t num_layers = 24;
  int64_t num_heads = 8;
  int64_t head_dim = 128;                  // of a key
  std::optional<int64_t> num_value_heads;  // gated_delta_net, kda: a multiple of num_heads; null: num_heads
  std::optional<double> value_expand;  // head size of a value over head_dim; null: 2 for gated_delta_net, 1
  std::optional<int64_t> intermediate_size;  // SwiGLU width; default: 256 * ceil(floor(hidden * 8 / 3) / 256)
  int64_t conv_size = 4;
  bool tie_embeddings = false;
  double norm_eps = 1.0e-6;
  double initializer_range = 0.02;                   // standard deviation of the normal initialisation
  std::optional<bool> use_gate;                      // gated output norm; null: not for delta_net
  bool allow_negative_eigenvalues = false;           // beta in (0, 2)
  QkNorm qk_norm = QkNorm::kL2;                      // delta_net: how queries and keys are normalised
  QkActivation qk_activation = QkActivation::kSilu;  // delta_net: activation of queries and keys
  std::optional<int64_t> gate_low_rank;    // kda: rank of its two gates; null: the head size of a value
  std::optional<double> gate_lower_bound;  // kda: log decay in (this, 0) by a sigmoid; null: by a softplus
  bool safe_gate = false;                  // kda: decay rates start at 1 (needs gate_lower_bound)
  Attention attention;
  std::optional<Osdn> osdn;
};

struct WeightedSource {
  std::string path;  // a glob of shards
  double weight = 1.0;
};

struct Data {
  std::vector<WeightedSource> train;  // required for training
  std::vector<std::string> validation;
  std::optional<std::string> tokenizer;  // sentencepiece model
  int64_t sequence_length = 4096;
  Documents documents = Documents::kReset;
  std::optional<int64_t>
      max_document_tokens;  // documents longer than this are cut into windows of this length
};

struct Optimizer {
  double learning_rate = 1.0e-3;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1.0e-15;
  double weight_decay = 0.1;
  double clip_norm = 1.0;      // global norm
  bool skip_nonfinite = true;  // skip and count steps with a non-finite loss or gradient
  Schedule schedule = Schedule::kCosine;
  int64_t warmup_steps = 1024;
  double final_ratio = 0.1;     // learning rate at the end over its peak
  double decay_fraction = 0.2;  // warmup_stable_decay only: share of the steps in the final decay
  bool decay_all = false;       // decay every parameter, as the peer does
  int64_t max_skipped_in_row = 10;
};

struct Train {
  int64_t steps = 20480;
  int64_t global_batch_tokens = 524288;
  std::optional<int64_t> micro_batch_sequences;  // auto (absent): chosen once and frozen in the run
  Precision precision = Precision::kAuto;        // auto: bfloat16 compute with float32 master weights on CUDA
  std::optional<bool> cuda_graph;                // auto (absent): one rank on a GPU, where it can be
  Recompute recompute = Recompute::kNone;
};

struct Checkpoint {
  int64_t every_steps = 512;  // 0: none by steps
  double every_minutes = 30;  // 0: none by time
  int64_t keep_last = 2;
  int64_t keep_every_steps = 5120;  // these keep weights only; 0: none
  bool asynchronous = true;
};

struct Evaluation {
  int64_t every_steps = 1024;
  int64_t sequences = 256;
};

struct TrainTokenizer {
  TokenizerType type = TokenizerType::kBpe;  // YAML key `train`
  int64_t vocab_size = 32000;
};

struct Prepare {
  std::vector<std::string> input;  // globs of .txt, .jsonl and .parquet files, each also .gz or .zst
  bool builtin = false;            // the built-in corpus instead of input files
  int64_t builtin_megabytes = 4;   // size of the built-in corpus, MB of text
  std::string format = "auto";     // auto | txt | jsonl | parquet
  std::string text_key = "text";   // JSON field or Parquet column of the document text; a.b: b inside a
  std::string on_error = "stop";   // stop | skip: records that cannot become documents
  int64_t max_record_bytes = int64_t{1} << 30;  // a line, row or text file, unpacked
  std::string output = "shards";
  double validation_fraction = 0.001;          // by document hash
  bool add_eos = false;                        // end each document with eos as well
  int64_t shard_tokens = int64_t{1} << 27;     // tokens a shard, at most 2^28
  std::optional<std::string> tokenizer_model;  // YAML: tokenizer: {model: path}; else one is trained
  TrainTokenizer tokenizer;
  int64_t workers = 0;  // 0: all cores
};

struct Metrics {
  int64_t every_steps = 1;
  int64_t residual_every_steps = 10;
  bool tensorboard = true;
};

struct Distributed {
  int64_t zero = 1;
  Exchange exchange = Exchange::kAuto;
  std::optional<int64_t> processes_per_node;  // auto (absent)
  int64_t timeout_seconds = 600;
  int64_t max_restarts = 3;
};

struct Config {
  Run run;
  Model model;
  Data data;
  Optimizer optimizer;
  Train train;
  Checkpoint checkpoint;
  Evaluation evaluation;
  Prepare prepare;
  Metrics metrics;
  Distributed distributed;
};

/// SwiGLU width: the configured one, or the peer's rule (backbones: 256 * ceil(floor(hidden * 8 / 3) / 256)).
int64_t intermediate_size(const Model& model);

// What the optional fields of a model stand for.
int64_t num_value_heads(const Model& model);
int64_t value_dim(const Model& model);  // head size of a value
bool output_gate(const Model& model);
int64_t gate_low_rank(const Model& model);
int64_t attention_heads(const Model& model);
int64_t attention_kv_heads(const Model& model);
bool is_attention_layer(const Model& model, int64_t layer);

/// Largest beta the backbone can produce: 1, or 2 with negative eigenvalues.
double max_beta(const Model& model);

/// Checks values and combinations that no single field shows (heads x head_dim, box, ranges, batch against
/// sequence). Throws UserError whose text starts with the dotted key.
void validate(const Config& config);

}  // namespace osdn::config
