#include <utility>

#include "config/detail/schema.h"
#include "config/detail/table.h"

namespace osdn::config::detail {
namespace {

void add_run(Table& table) {
  table.section("run", "The run: its name, place and randomness.");
  table.field(
      "name", [](auto& c) -> auto& { return c.run.name; }, may_be_unset(),
      "Names the run's directory; required for training");
  table.field(
      "directory", [](auto& c) -> auto& { return c.run.directory; }, path(), "Parent of the run's directory");
  table.field(
      "seed", [](auto& c) -> auto& { return c.run.seed; }, at_least(0),
      "Seed of the initialisation and of the order of the data");
  table.field(
      "device", [](auto& c) -> auto& { return c.run.device; }, any(),
      "Where to compute; auto: a GPU when one is visible");
  table.field(
      "resume", [](auto& c) -> auto& { return c.run.resume; }, any(),
      "auto: continue from the newest valid checkpoint; never: refuse a directory that holds checkpoints");
  table.field(
      "init_from", [](auto& c) -> auto& { return c.run.init_from; }, path(),
      "A checkpoint directory whose weights the run starts from");
}

void add_data(Table& table) {
  table.section("data", "Token shards and how they are cut.");
  table.field(
      "train", [](auto& c) -> auto& { return c.data.train; }, path(),
      "Shards to train on: globs, or {path, weight} to mix sources; required for training");
  table.field(
      "validation", [](auto& c) -> auto& { return c.data.validation; }, path(),
      "Shards to validate on: globs");
  table.field(
      "tokenizer", [](auto& c) -> auto& { return c.data.tokenizer; }, path(),
      "The sentencepiece model that made the shards");
  table.field(
      "sequence_length", [](auto& c) -> auto& { return c.data.sequence_length; }, between(1, 1 << 30),
      "Target tokens of a training window");
  table.field(
      "documents", [](auto& c) -> auto& { return c.data.documents; }, any(),
      "reset: state and convolutions restart at every document; carry: at window starts only");
  table.field(
      "max_document_tokens", [](auto& c) -> auto& { return c.data.max_document_tokens; }, count(),
      "Restart inside longer documents every so many tokens; null: never");
}

void add_optimizer(Table& table) {
  table.section("optimizer", "AdamW and its schedule.");
  table.field(
      "learning_rate", [](auto& c) -> auto& { return c.optimizer.learning_rate; }, at_least(0),
      "Peak learning rate");
  table.field(
      "betas", [](auto& c) -> auto& { return c.optimizer.betas; }, from_up_to_below(0, 1),
      "Decay rates of the two moments");
  table.field(
      "eps", [](auto& c) -> auto& { return c.optimizer.eps; }, above(0),
      "Added to the root of the second moment");
  table.field(
      "weight_decay", [](auto& c) -> auto& { return c.optimizer.weight_decay; }, at_least(0),
      "Decoupled weight decay of matrices and convolutions");
  table.field(
      "clip_norm", [](auto& c) -> auto& { return c.optimizer.clip_norm; }, above(0),
      "Largest global norm of the gradient");
  table.field(
      "skip_nonfinite", [](auto& c) -> auto& { return c.optimizer.skip_nonfinite; }, any(),
      "Skip and count steps whose loss or gradient is not finite");
  table.field(
      "schedule", [](auto& c) -> auto& { return c.optimizer.schedule; }, any(),
      "Course of the learning rate after the warm-up; wsd: constant, then decay");
  table.field(
      "warmup_steps", [](auto& c) -> auto& { return c.optimizer.warmup_steps; }, between(0, kLargestCount),
      "Steps of the linear warm-up");
  table.field(
      "final_ratio", [](auto& c) -> auto& { return c.optimizer.final_ratio; }, between(0, 1),
      "Learning rate at the last step over its peak");
  table.field(
      "decay_fraction", [](auto& c) -> auto& { return c.optimizer.decay_fraction; }, above_up_to(0, 1),
      "wsd only: share of the steps in the final decay");
  table.field(
      "decay_all", [](auto& c) -> auto& { return c.optimizer.decay_all; }, any(),
      "Decay every parameter, norms and d0 included");
  table.field(
      "max_skipped_in_row", [](auto& c) -> auto& { return c.optimizer.max_skipped_in_row; }, count(),
      "So many skipped steps in a row end the run");
}

void add_training(Table& table) {
  table.section("train", "Length, batch and precision.");
  table.field(
      "steps", [](auto& c) -> auto& { return c.train.steps; }, count(), "Optimiser steps of the whole run");
  table.field(
      "global_batch_tokens", [](auto& c) -> auto& { return c.train.global_batch_tokens; }, count(),
      "Target tokens of a step over all ranks; a multiple of data.sequence_length");
  table.field(
      "micro_batch_sequences", [](auto& c) -> auto& { return c.train.micro_batch_sequences; },
      automatic(count()), "Windows a rank computes at once; auto: chosen at the first start and kept");
  table.field(
      "precision", [](auto& c) -> auto& { return c.train.precision; }, any(),
      "Of the computation; master weights are float32. auto: bfloat16 on a GPU, float32 on a CPU");
  table.field(
      "cuda_graph", [](auto& c) -> auto& { return c.train.cuda_graph; }, automatic(any()),
      "Capture forward and backward, with their collectives, in a CUDA graph: the same bits in less time of "
      "the host; a graph holds the memory of its activations for good. auto: on a GPU without other ranks, "
      "where it can be");
  table.field(
      "recompute", [](auto& c) -> auto& { return c.train.recompute; }, any(),
      "What the backward pass computes again to save memory");

  table.section("checkpoint", "When checkpoints are made and which are kept.");
  table.field(
      "every_steps", [](auto& c) -> auto& { return c.checkpoint.every_steps; }, between(0, kLargestCount),
      "Steps between checkpoints; 0: none by steps");
  table.field(
      "every_minutes", [](auto& c) -> auto& { return c.checkpoint.every_minutes; }, at_least(0),
      "Minutes after which one is made in any case; 0: none by time");
  table.field(
      "keep_last", [](auto& c) -> auto& { return c.checkpoint.keep_last; }, between(0, kLargestCount),
      "Newest checkpoints that are kept whole; 0: all");
  table.field(
      "keep_every_steps", [](auto& c) -> auto& { return c.checkpoint.keep_every_steps; },
      between(0, kLargestCount), "Keep the weights at multiples of so many steps for good; 0: none");
  table.field(
      "asynchronous", [](auto& c) -> auto& { return c.checkpoint.asynchronous; }, any(),
      "Write while training goes on");

  table.section("evaluation", "Validation during training.");
  table.field(
      "every_steps", [](auto& c) -> auto& { return c.evaluation.every_steps; }, count(),
      "Steps between validations");
  table.field(
      "sequences", [](auto& c) -> auto& { return c.evaluation.sequences; }, count(),
      "Validation windows that are scored");
}

void add_prepare(Table& table) {
  table.section("prepare", "Text to token shards (`osdn prepare`).");
  table.field(
      "input", [](auto& c) -> auto& { return c.prepare.input; }, path(),
      "Files of text: globs of .txt, .jsonl and .parquet, each also .gz or .zst");
  table.field(
      "builtin", [](auto& c) -> auto& { return c.prepare.builtin; }, any(),
      "Use the built-in corpus instead of input files");
  table.field(
      "builtin_megabytes", [](auto& c) -> auto& { return c.prepare.builtin_megabytes; }, between(1, 100000),
      "Size of the built-in corpus, MB of text");
  table.field(
      "format", [](auto& c) -> auto& { return c.prepare.format; },
      one_of({"auto", "txt", "jsonl", "parquet"}), "Of the input files; auto: by their ending");
  table.field(
      "text_key", [](auto& c) -> auto& { return c.prepare.text_key; }, any(),
      "JSON field or Parquet column that holds a document's text; a.b: field b inside a");
  table.field(
      "on_error", [](auto& c) -> auto& { return c.prepare.on_error; }, one_of({"stop", "skip"}),
      "A record that cannot become a document (invalid UTF-8, broken JSON, no text, too long): stop, or skip "
      "and count it");
  table.field(
      "max_record_bytes", [](auto& c) -> auto& { return c.prepare.max_record_bytes; }, between(1, 1 << 30),
      "Longest line, row or text file, unpacked; it bounds memory");
  table.field(
      "output", [](auto& c) -> auto& { return c.prepare.output; }, path(), "Directory of the shards");
  table.field(
      "validation_fraction", [](auto& c) -> auto& { return c.prepare.validation_fraction; },
      from_up_to_below(0, 1), "Share of the documents kept for validation, chosen by their digest");
  table.field(
      "add_eos", [](auto& c) -> auto& { return c.prepare.add_eos; }, any(),
      "End each document with eos (each starts with bos in any case)");
  table.field(
      "shard_tokens", [](auto& c) -> auto& { return c.prepare.shard_tokens; }, between(1, 1 << 28),
      "Tokens of a shard");
  table.field(
      "workers", [](auto& c) -> auto& { return c.prepare.workers; }, between(0, 4096),
      "Encoding threads; 0: one a core");

  table.section("prepare.tokenizer", "The tokenizer that `osdn prepare` uses.");
  table.field(
      "model", [](auto& c) -> auto& { return c.prepare.tokenizer_model; }, path(),
      "A sentencepiece model to use; null: one is trained with the two values below");
  table.field(
      "train", [](auto& c) -> auto& { return c.prepare.tokenizer.type; }, any(),
      "Kind of tokenizer to train");
  table.field(
      "vocab_size", [](auto& c) -> auto& { return c.prepare.tokenizer.vocab_size; }, between(260, 1 << 24),
      "Number of token ids to train, the 256 bytes included");
}

void add_rest(Table& table) {
  table.section("metrics", "What is recorded.");
  table.field(
      "every_steps", [](auto& c) -> auto& { return c.metrics.every_steps; }, count(),
      "Steps between lines of metrics.jsonl");
  table.field(
      "residual_every_steps", [](auto& c) -> auto& { return c.metrics.residual_every_steps; }, count(),
      "Steps between measurements of q_geo and its companions");
  table.field(
      "tensorboard", [](auto& c) -> auto& { return c.metrics.tensorboard; }, any(),
      "Write TensorBoard event files beside metrics.jsonl");

  table.section("distributed", "Several processes.");
  table.field(
      "zero", [](auto& c) -> auto& { return c.distributed.zero; }, between(0, 1),
      "1: each rank keeps the optimiser state of its own range; 0: every rank keeps all");
  table.field(
      "exchange", [](auto& c) -> auto& { return c.distributed.exchange; }, any(),
      "How gradients and weights go from GPU to GPU. auto: by their copy engines where all GPUs of the job "
      "are in one host and reach each other, else over NCCL; nccl: over NCCL");
  table.field(
      "processes_per_node", [](auto& c) -> auto& { return c.distributed.processes_per_node; },
      automatic(between(1, 1024)), "Processes started on a node; auto: one a visible GPU");
  table.field(
      "timeout_seconds", [](auto& c) -> auto& { return c.distributed.timeout_seconds; }, between(1, 1e6),
      "Longest wait of a collective operation, and for ranks and nodes to come");
  table.field(
      "max_restarts", [](auto& c) -> auto& { return c.distributed.max_restarts; }, between(0, 1e6),
      "Restarts from the newest checkpoint after a process that osdn started died");
}

Table make_table() {
  Table table;
  add_run(table);
  add_model(table);
  add_data(table);
  add_optimizer(table);
  add_training(table);
  add_prepare(table);
  add_rest(table);
  return table;
}

const Table& table_of_fields() {
  static const Table table = make_table();
  return table;
}

}  // namespace

const std::vector<Section>& sections() { return table_of_fields().sections; }
const std::vector<Field>& fields() { return table_of_fields().fields; }

bool is_section(const std::string& key) {
  for (const Section& section : sections())
    if (section.key == key) return true;
  return false;
}

const Field* find_field(const std::string& key) {
  for (const Field& field : fields())
    if (field.key == key) return &field;
  return nullptr;
}

bool is_present(const Field& field, const Config& config) {
  return field.section != "model.osdn" || config.model.osdn.has_value();
}

}  // namespace osdn::config::detail
