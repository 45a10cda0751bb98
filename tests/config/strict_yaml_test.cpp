// What strict loading accepts and refuses, and how it says so.
#include <cstdlib>
#include <string>

#include "base/fs.h"
#include "tests/config/config_support.h"
#include "tests/support/catch.h"

namespace osdn::config::test {

TEST_CASE("a duplicate key is refused with both lines", "[strict_yaml]") {
  CHECK(load_error("optimizer:\n  learning_rate: 1.0e-3\n  learning_rate: 3.0e-4\n") ==
        "c.yaml:3: optimizer.learning_rate: given twice, first on line 2; keep one");
  CHECK(load_error("optimizer: {eps: 1.0e-8}\nrun: {name: a}\noptimizer: {clip_norm: 2.0}\n") ==
        "c.yaml:3: optimizer: given twice, first on line 1; keep one");
  CHECK(load_error("data:\n  train:\n    - {path: a.h5,\n       path: b.h5}\n") ==
        "c.yaml:4: data.train[0].path: given twice, first on line 3; keep one");
  CHECK(contains(load_error("run: {name: a, \"name\": b}\n"), "run.name: given twice"));
}

TEST_CASE("merge keys are refused and aliases are copies", "[strict_yaml]") {
  const std::string message = load_error("model: &b {hidden_size: 512}\ntrain:\n  <<: *b\n  steps: 4\n");
  CHECK(is_line_starting(message, "c.yaml:3: train: merge keys (\"<<\") are not supported"));
  CHECK(contains(load_error("base: &b {hidden_size: 512, num_layers: 4}\nmodel: {<<: *b, num_layers: 6}\n"),
                 "merge keys"));
  const Config config = load_ok("checkpoint: {every_steps: &every 40}\nevaluation: {every_steps: *every}\n");
  CHECK(config.checkpoint.every_steps == 40);
  CHECK(config.evaluation.every_steps == 40);
  CHECK(is_line_starting(load_error("run:\n  name: *nowhere\n"), "c.yaml:2:9: not valid YAML"));
  CHECK(contains(load_error("data: &d {train: [*d]}\n"), "alias cannot stand inside its own anchor"));
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string previous = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + previous;
    for (int j = 0; j < 9; ++j) bomb += ", " + previous;
    bomb += "]\n";
  }
  CHECK(contains(load_error(bomb), "more than 100000 values"));
}

TEST_CASE("an unknown key names its place and the nearest valid one", "[strict_yaml]") {
  CHECK(is_line_starting(
      load_error("optimizer:\n  learning_rte: 1.0e-3\n"),
      "c.yaml:2: optimizer.learning_rte: unknown key (did you mean optimizer.learning_rate?)"));
  CHECK(is_line_starting(load_error("model: {num-layers: 3}\n"),
                         "c.yaml:1: model.num-layers: unknown key (did you mean model.num_layers?)"));
  CHECK(contains(load_error("model: {Num_Layers: 3}\n"), "did you mean model.num_layers?"));
  CHECK(
      contains(load_error("modle: {num_layers: 3}\n"), "c.yaml:1: modle: unknown key (did you mean model?)"));
  CHECK(contains(load_error("model: {osdn: {step_sise: 0.5}}\n"), "did you mean model.osdn.step_size?"));
  CHECK(contains(load_error("foo: {bar: 1}\n"), "valid keys at the top: run, model, data"));
}

TEST_CASE("a key at the wrong level says where it belongs", "[strict_yaml]") {
  CHECK(is_line_starting(load_error("run: {name: a}\nlearning_rate: 1.0e-3\n"),
                         "c.yaml:2: learning_rate: unknown key (the key is optimizer.learning_rate)"));
  CHECK(contains(load_error("lr: 1.0e-3\n"), "did you mean optimizer.learning_rate?"));
  CHECK(contains(load_error("model: {step_size: 0.5}\n"), "the key is model.osdn.step_size"));
  CHECK(contains(load_error("every_steps: 3\n"),
                 "the key is checkpoint.every_steps or evaluation.every_steps or metrics.every_steps"));
  CHECK(contains(load_error("train.steps: 3\n"), "the key is train.steps"));
}

TEST_CASE("numbers are accepted as meant or refused with the expected type", "[strict_yaml]") {
  CHECK(load_ok("optimizer: {learning_rate: 1e-4}\n").optimizer.learning_rate == 1e-4);
  CHECK(load_ok("optimizer: {learning_rate: 1E-4}\n").optimizer.learning_rate == 1e-4);
  CHECK(load_ok("optimizer: {learning_rate: .5}\n").optimizer.learning_rate == 0.5);
  CHECK(load_ok("optimizer: {learning_rate: 1}\n").optimizer.learning_rate == 1.0);
  CHECK(load_ok("train: {steps: 1e6}\n").train.steps == 1000000);
  CHECK(load_ok("train: {steps: 1_000_000}\n").train.steps == 1000000);
  CHECK(load_ok("train: {steps: 3000000000}\n").train.steps == 3000000000);
  CHECK(load_ok("train: {steps: 8.0}\n").train.steps == 8);
  CHECK(
      load_error("optimizer:\n  learning_rate: \"1e-4\"\n") ==
      "c.yaml:2: optimizer.learning_rate: expected a number of at least 0, got \"1e-4\" (remove the quotes)");
  CHECK(contains(load_error("optimizer: {learning_rate: '0,001'}\n"), "expected a number"));
  CHECK(contains(load_error("optimizer:\n  learning_rate: 0,001\n"), "got \"0,001\" (did you mean 0.001?)"));
  CHECK(
      load_error("train:\n  global_batch_tokens: 8k\n") ==
      "c.yaml:2: train.global_batch_tokens: expected a positive integer up to 1e15, got \"8k\" (did you mean "
      "8192?)");
  CHECK(contains(load_error("train: {steps: 1.5}\n"), "train.steps: expected a positive integer"));
  CHECK(contains(load_error("train: {steps: 010}\n"), "(did you mean 10?)"));
  CHECK(contains(load_error("train: {steps: 99999999999999999999}\n"), "expected a positive integer"));
  CHECK(contains(load_error("optimizer: {learning_rate: .inf}\n"), "expected a number"));
  CHECK(contains(load_error("optimizer: {learning_rate: .nan}\n"), "expected a number"));
  CHECK(contains(load_error("optimizer: {learning_rate: 1e999}\n"), "expected a number"));
}

TEST_CASE("truth values are true and false alone", "[strict_yaml]") {
  CHECK(load_ok("metrics: {tensorboard: False}\n").metrics.tensorboard == false);
  CHECK(load_error("metrics: {tensorboard: yes}\n") ==
        "c.yaml:1: metrics.tensorboard: expected true or false, got \"yes\" (did you mean true?)");
  CHECK(contains(load_error("metrics: {tensorboard: 'true'}\n"), "remove the quotes"));
}

TEST_CASE("an absent value is unset where that is possible and refused elsewhere", "[strict_yaml]") {
  CHECK(!load_ok("data:\n  tokenizer:\n").data.tokenizer);
  CHECK(!load_ok("data: {tokenizer: ~}\n").data.tokenizer);
  CHECK(!load_ok("run: {init_from: null}\n").run.init_from);
  CHECK(load_ok("run: {name: null}\n").run.name.empty());
  CHECK(load_ok("run: {name: 'null'}\n").run.name == "null");
  CHECK(load_ok("optimizer:\nrun: {name: a}\n").optimizer.eps == 1e-15);
  CHECK(load_error("run:\n  directory:\n  seed: 3\n") ==
        "c.yaml:2: run.directory: value missing: expected a path");
  CHECK(contains(load_error("run: {directory: ~}\n"), "run.directory: value missing"));
  CHECK(contains(load_error("run: {directory: ''}\n"), "run.directory: expected a path, got \"\""));
  CHECK(contains(load_error("train:\n  steps:\n"), "c.yaml:2: train.steps: value missing"));
  CHECK(contains(load_error("train: {recompute: }\n"),
                 "train.recompute: value missing: expected none | mixer | block"));
  CHECK(contains(load_error("data:\n  train:\n    - a.h5\n    -\n"), "data.train[1]: value missing"));
}

TEST_CASE("auto leaves the choice to the program", "[strict_yaml]") {
  const Config config = load_ok(
      "train: {micro_batch_sequences: auto, cuda_graph: auto, precision: auto}\n"
      "distributed: {processes_per_node: auto}\n");
  CHECK(!config.train.micro_batch_sequences);
  CHECK(!config.train.cuda_graph);
  CHECK(!config.distributed.processes_per_node);
  CHECK(load_ok("train: {cuda_graph: false, micro_batch_sequences: 4}\n").train.cuda_graph == false);
  CHECK(contains(load_error("train: {steps: auto}\n"), "expected a positive integer"));
}

TEST_CASE("text that yaml-cpp drops silently is refused", "[strict_yaml]") {
  const std::string good = "run: {name: a}\n";
  CHECK(load_error(good).empty());
  CHECK(is_line_starting(load_error(good + "---\ntrain: {steps: 3}\n"),
                         "c.yaml:3: expected one YAML document"));
  CHECK(contains(load_error(good + "---\n"), "expected one YAML document"));
  CHECK(is_line_starting(load_error(good + "...\ntrain: {steps: 3}\n"), "c.yaml:3: expected"));
  CHECK(contains(load_error(good + "...\ngarbage\n"), "c.yaml:3: expected"));
  CHECK(load_error("---\n" + good + "...\n# a comment\n").empty());
  // Some versions of yaml-cpp accept it, others refuse it themselves.
  for (const std::string quote : {"'", "\""}) {
    const std::string message = load_error(good + "data:\n  tokenizer: " + quote + "abc\n");
    CHECK(is_line_starting(message, "c.yaml:"));
    CHECK((contains(message, "never closed") || contains(message, "not valid YAML")));
  }
  CHECK(contains(load_error(""), "got an empty file"));
  CHECK(contains(load_error("# only a comment\n\n"), "got an empty file"));
  CHECK(contains(load_error("lr 0.1\n"),
                 "c.yaml:1: expected sections such as run, model and data, got \"lr 0.1\""));
  CHECK(contains(load_error("- run\n- model\n"), "got a list"));
  CHECK(!load_error("run: {name: a, see").empty());
  CHECK(!load_error("run: {name: a,").empty());
}

TEST_CASE("a byte order mark and CRLF line ends are accepted, other encodings are not", "[strict_yaml]") {
  const Config config = load_ok("\xEF\xBB\xBFrun:\r\n  name: a\r\n  seed: 3\r\ntrain: {steps: 5}\r\n");
  CHECK(config.run.name == "a");
  CHECK(config.run.seed == 3);
  CHECK(config.train.steps == 5);
  CHECK(load_ok("run: {name: na\xC3\xAFve}\n").run.name == "na\xC3\xAFve");
  CHECK(load_error("run:\n  name: na\xEFve\n") ==
        "c.yaml:2: expected UTF-8, got the byte 0xef; save the file as UTF-8");
  CHECK(contains(load_error(std::string("\xFF\xFEr\0u\0", 6)), "got binary data or UTF-16"));
}

TEST_CASE("syntax errors name line and column", "[strict_yaml]") {
  CHECK(is_line_starting(load_error("model:\n\thidden_size: 5\n"),
                         "c.yaml:2:1: expected spaces, got a tab in the indentation"));
  CHECK(is_line_starting(load_error("run: {name: a}\nmodel: {num_layers: 3\n"), "c.yaml:"));
  CHECK(is_line_starting(load_error("run:\n  name: a\n seed: 3\n"), "c.yaml:3:"));
  CHECK(contains(load_error("run: !!python/object {name: a}\n"), "YAML tags are not supported"));
  CHECK(contains(load_error("? [a, b]\n: 3\n"), "expected a key, got a list"));
  CHECK(!load_error(std::string(5000, '[')).empty());
}

TEST_CASE("what is missing at the end of a file is placed on its last line", "[strict_yaml]") {
  CHECK(is_line_starting(load_error("data:\n  train:\n    - a.h5\n    -\n\n"),
                         "c.yaml:4: data.train[1]: value missing"));
  CHECK(
      is_line_starting(load_error("run: {name: a}\nmodel: {hidden_size: 4\n"), "c.yaml:2: not valid YAML: "));
}

TEST_CASE("a wrong type names the key however deep it is", "[strict_yaml]") {
  CHECK(load_error("model:\n  osdn:\n    box: [0.5, wide]\n") ==
        "c.yaml:3: model.osdn.box[1]: expected a number of at least 0, got \"wide\"");
  CHECK(contains(load_error("model:\n  osdn:\n    box: [0.5]\n"),
                 "model.osdn.box: expected a list [a, b] of two"));
  CHECK(contains(load_error("model: 3\n"), "c.yaml:1: model: expected a section of keys, got \"3\""));
  CHECK(contains(load_error("model: {num_layers: [3]}\n"),
                 "model.num_layers: expected an integer from 1 to 1048576, got a list"));
  CHECK(contains(load_error("model: {num_layers: {a: 3}}\n"), "got a section of keys"));
  CHECK(contains(load_error("model: {backbone: deltanet}\n"), "(did you mean delta_net?)"));
  CHECK(contains(load_error("data: {train: a.h5}\n"),
                 "data.train: expected a list of paths or of {path, weight}"));
  CHECK(contains(load_error("data: {train: [{path: a, weigth: 1}]}\n"), "valid keys here: path, weight"));
  CHECK(contains(load_error("data: {train: [{weight: 1}]}\n"), "data.train[0]: value missing"));
  CHECK(contains(load_error("data: {train: [{path: a, weight: 0}]}\n"),
                 "data.train[0].weight: expected a number above 0"));
}

TEST_CASE("a run's name that no file system takes is refused before anything is made", "[strict_yaml]") {
  CHECK(load_ok("run: {name: " + std::string(255, 'n') + "}\n", {}).run.name.size() == 255);
  CHECK(contains(load_error("run: {name: " + std::string(256, 'n') + "}\n"),
                 "run.name: expected at most 255 bytes"));
}

TEST_CASE("a directory or missing file as configuration is a user error", "[strict_yaml]") {
  TemporaryDirectory directory;
  CHECK_THROWS_AS(load(directory.path(), {}), UserError);
  CHECK_THROWS_AS(load(directory.path() + "/absent.yaml", {}), UserError);
  atomic_write(directory.path() + "/good.yaml", "run: {name: from-file}\n");
  CHECK(load(directory.path() + "/good.yaml", {}).run.name == "from-file");
}

TEST_CASE("paths expand the home directory and environment variables", "[strict_yaml]") {
  ::setenv("HOME", "/home/someone", 1);
  ::setenv("OSDN_TEST_DATA", "/big disk/d\xC3\xA4ta", 1);
  ::unsetenv("OSDN_TEST_UNSET");
  const Config config = load_ok(
      "run: {directory: ./run}\n"
      "data: {train: [~/x, $OSDN_TEST_DATA/a-*.h5, '${OSDN_TEST_DATA}/b.h5'], validation: ['my $$ "
      "file.h5']}\n");
  CHECK(config.run.directory == "./run");
  CHECK(config.data.train.at(0).path == "/home/someone/x");
  CHECK(config.data.train.at(1).path == "/big disk/d\xC3\xA4ta/a-*.h5");
  CHECK(config.data.train.at(2).path == "/big disk/d\xC3\xA4ta/b.h5");
  CHECK(config.data.validation.at(0) == "my $ file.h5");
  CHECK(load_error("data:\n  tokenizer: ${OSDN_TEST_UNSET}/x\n") ==
        "c.yaml:2: data.tokenizer: expected a path, got \"${OSDN_TEST_UNSET}/x\" (the environment variable "
        "OSDN_TEST_UNSET is not set)");
  CHECK(contains(load_error("data: {tokenizer: ~other/x}\n"), "\"~name\" is not supported"));
  CHECK(contains(load_error("data: {tokenizer: '${x'}\n"), "without a name"));
}

TEST_CASE("data.train mixes plain and weighted sources", "[strict_yaml]") {
  const Config config = load_ok("data: {train: [a-*.h5, {path: b.h5, weight: 0.3}]}\n");
  REQUIRE(config.data.train.size() == 2);
  CHECK(config.data.train[0].path == "a-*.h5");
  CHECK(config.data.train[0].weight == 1.0);
  CHECK(config.data.train[1].weight == 0.3);
}

TEST_CASE("a value out of range names the range", "[strict_yaml]") {
  CHECK(load_error("train:\n  steps: 0\n") ==
        "c.yaml:2: train.steps: expected a positive integer up to 1e15, got \"0\"");
  CHECK(contains(load_error("optimizer: {betas: [0.9, 1.0]}\n"),
                 "optimizer.betas[1]: expected a number of at least 0 and below 1"));
  CHECK(
      contains(load_error("optimizer: {final_ratio: 1.5}\n"), "expected a number from 0 to 1, got \"1.5\""));
  CHECK(contains(load_error("prepare: {shard_tokens: 268435457}\n"), "from 1 to 268435456"));
  CHECK(contains(load_error("run: {seed: -1}\n"), "expected a non-negative integer, got \"-1\""));
}

TEST_CASE("overrides replace values and are as strict as the file", "[strict_yaml]") {
  const std::string text =
      "run: {name: a}\noptimizer: {eps: 1.0e-8, clip_norm: 2.0}\ndata: {train: [a.h5]}\n";
  CHECK(load_ok(text, {"run.name=b", "run.name=c"}).run.name == "c");
  CHECK(load_ok(text, {"train.steps=1e3"}).train.steps == 1000);
  CHECK(load_ok(text, {"data.train=[b.h5, c.h5]"}).data.train.size() == 2);
  const Config merged = load_ok(text, {"optimizer={clip_norm: 3.0}"});
  CHECK(merged.optimizer.clip_norm == 3.0);
  CHECK(merged.optimizer.eps == 1.0e-8);
  CHECK(load_ok(text, {"model.osdn={}"}).model.osdn.has_value());
  CHECK(!load_ok("model: {osdn: {step_size: 0.5}}\n", {"model.osdn=null"}).model.osdn.has_value());
  CHECK(load_ok(text, {"model.osdn.step_size=0.5"}).model.osdn->step_size == 0.5);
  CHECK(load_ok("model:\n", {"model.num_layers=3"}).model.num_layers == 3);
  CHECK(load_ok(text, {"data.tokenizer="}).data.tokenizer.has_value() == false);

  CHECK(
      is_line_starting(load_error(text, {"optimizer.learning_rte=1"}),
                       "--set: optimizer.learning_rte: unknown key (did you mean optimizer.learning_rate?)"));
  CHECK(load_error(text, {"train.steps=many"}) ==
        "--set: train.steps: expected a positive integer up to 1e15, got \"many\"");
  CHECK(load_error("run: {name: a}\n\n\ntrain: {steps: 4}\n", {"train.steps="}) ==
        "--set: train.steps: value missing: expected a positive integer up to 1e15");
  CHECK(contains(load_error(text, {"train.steps"}), "--set: expected key=value, got \"train.steps\""));
  CHECK(contains(load_error(text, {"=3"}), "expected key=value"));
  CHECK(contains(load_error(text, {"train..steps=3"}), "expected a key such as train.steps"));
  CHECK(contains(load_error(text, {"run.name.first=3"}),
                 "--set: run.name.first: unknown key (run.name is not a section)"));
  CHECK(contains(load_error(text, {"train.steps=[1"}), "in the value of train.steps"));
  CHECK(contains(load_error(text, {"train.steps='1"}), "never closed"));
  CHECK(contains(load_error(text, {"run.directory="}), "--set: run.directory: value missing"));
  CHECK(is_line_starting(load_error(text, {"model.num_heads=7"}),
                         "--set: model.hidden_size: expected num_heads x head_dim"));
}

TEST_CASE("presets fill in values that further keys override", "[strict_yaml]") {
  const Config config = load_ok("model:\n  osdn: {step_size: 0.5, preset: osdn_apf_authors}\n");
  REQUIRE(config.model.osdn.has_value());
  CHECK(config.model.osdn->preset == std::string("osdn_apf_authors"));
  CHECK(config.model.osdn->step_size == 0.5);
  CHECK(config.model.osdn->box[1] == 1e9);
  CHECK(config.model.osdn->retention == Retention::kOwnGate);
  CHECK(!load_ok("model: {osdn: {preset: deltanet}}\n").model.osdn.has_value());
  CHECK(contains(load_error("model:\n  osdn: {preset: deltanet, step_size: 1.0}\n"),
                 "expected no key beside preset"));
  CHECK(contains(load_error("model: {osdn: {preset: osdn_afp}}\n"), "(did you mean osdn_apf?)"));
  CHECK(contains(load_error("model: {osdn: osdn_apf}\n"), "write {preset: osdn_apf}"));
  const Config changed = load_ok("model: {osdn: {preset: osdn, step_size: 0.5}}\n",
                                 {"model.osdn.preset=osdn_apf", "model.osdn.detach=true"});
  CHECK(changed.model.osdn->retention == Retention::kOwnGate);
  CHECK(changed.model.osdn->step_size == 1.0);
  CHECK(changed.model.osdn->detach);
}

TEST_CASE("a list of numbers is read, written and read again", "[strict_yaml]") {
  const Config config = load_ok("model: {attention: {layers: [3, 7], num_heads: 8}}\n");
  CHECK(config.model.attention.layers == std::vector<int64_t>{3, 7});
  CHECK(contains(dump(config), "layers: [3, 7]"));
  CHECK(load_ok(dump(config)).model.attention.layers == config.model.attention.layers);
  CHECK(load_ok("model: {attention: {layers: [3]}}\n", {"model.attention.layers=[1, 2]"})
            .model.attention.layers == std::vector<int64_t>{1, 2});
}

TEST_CASE("a refused combination names the line of its key", "[strict_yaml]") {
  CHECK(is_line_starting(load_error("run: {name: a}\nmodel:\n  osdn:\n    box: [0.5, 2.5]\n"),
                         "c.yaml:4: model.osdn.box: "));
  CHECK(is_line_starting(load_error("model:\n  backbone: kda\n  use_gate: false\n"),
                         "c.yaml:3: model.use_gate: expected true for backbone kda"));
  CHECK(is_line_starting(load_error("model:\n  attention:\n    layers: [3, 99]\n"),
                         "c.yaml:3: model.attention.layers: expected layers below"));
  CHECK(is_line_starting(load_error("model:\n  attention: {layers: [1, two]}\n"),
                         "c.yaml:2: model.attention.layers[1]: expected"));
  CHECK(is_line_starting(load_error("data:\n  sequence_length: 1000\n"),
                         "c.yaml: train.global_batch_tokens: "));
}

}  // namespace osdn::config::test
