# Sourced by bench_ranks.sh: the page of its lines. A table appears where something of it was measured.

lines_of_kind() {  # kind, lines
  grep "\"kind\": \"$1\"" "$2" || true
}

rates_table() {  # lines of rates
  echo
  echo "| configuration | sequences a GPU | settings | GPUs | step ms | tokens/s | of linear | of the slowest | memory before activations GiB | peak GiB | last loss | commit |"
  echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
  awk "$awk_value"'
    {
      key = value("configuration") ":" value("sequences")
      settings = value("settings")
      rate = value("tokens_per_second") + 0; gpus = value("gpus") + 0; first = value("first_gpu") + 0
      if (gpus == 1) { one[key settings, first] = rate; alone[key settings] = 1 }
      # What says nothing to one GPU, or was not measured on one, is held against the runs without settings.
      base = key settings in alone ? key settings : key
      linear = slowest = ""
      if (gpus > 1 && base in alone) {
        sum = known = 0
        for (i = first; i < first + gpus; i++)
          if ((base, i) in one) { sum += one[base, i]; if (!known++ || one[base, i] < least) least = one[base, i] }
        # Processes of one processor are all like the first.
        if (!known) { sum = least = one[base, 0]; known = 1 }
        linear = sprintf("%.1f %%", 100 * rate / (gpus * sum / known))
        slowest = sprintf("%.1f %%", 100 * rate / (gpus * least))
      }
      gsub(/:/, " ", settings)
      print "| " value("configuration") " | " value("sequences") " |" settings " | " (gpus == 1 ? "number " first : gpus) " | " value("step_ms") " | " value("tokens_per_second") " | " \
        linear " | " slowest " | " value("before_activations_gib") " | " value("memory_gib") " | " value("loss") " | " value("commit") " |"
    }
  '
}

residual_table() {  # lines of rates
  awk "$awk_value"'
    { key = "| " value("configuration") " | " value("sequences") " | " value("gpus") " | "; at = value("first_gpu") }
    value("settings") == "" { never[key, at] = value("step_ms") + 0 }
    value("settings") == ":metrics.residual_every_steps=1" && (key, at) in never {
      if (!any++) {
        print "\n## What q_geo costs\n"
        print "A step that measures it, in every layer and over all GPUs, against one that does not.\n"
        print "| configuration | sequences a GPU | GPUs | step ms without | step ms with | cost |"
        print "| --- | --- | --- | --- | --- | --- |"
      }
      printf "%s%.2f | %.2f | %.1f %% |\n", key, never[key, at], value("step_ms"), 100 * (value("step_ms") / never[key, at] - 1)
    }
  '
}

exchange_table() {  # lines of exchanges
  awk "$awk_value"'
    !any++ {
      print "\n## What the exchange costs, and how much of it is hidden\n"
      print "`osdn bench exchange`: all sums of gradients and all gathering of weights of a step, with nothing beside them; then steps of all"
      print "GPUs with the exchange beside the passes and, in turn, without any. \"Hidden\": the share of the time of the exchange alone by which"
      print "a step does not become longer; \"by backward\": that of the gradients, from steps with their sums alone. GB/s: what crosses the link"
      print "of each GPU.\n"
      print "| configuration | sequences a GPU | settings | GPUs | gradients ms | GB/s | weights ms | GB/s | step ms without | with gradients | with both | hidden by backward | hidden |"
      print "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    }
    {
      settings = value("settings")
      gsub(/:/, " ", settings)
      printf "| %s | %s |%s | %s | %s | %s | %s | %s | %s | %s | %s | %.1f %% | %.1f %% |\n", value("configuration"), value("sequences"), settings, value("gpus"), \
        value("gradients_ms"), value("gradients_gb_per_s"), value("weights_ms"), value("weights_gb_per_s"), value("step_alone_ms"), value("step_gradients_ms"), \
        value("step_ms"), 100 * value("hidden_by_backward"), 100 * value("hidden_share")
    }
  '
}

curve_table() {  # lines of curves
  awk "$awk_value"'
    !any++ {
      print "\n## The same losses on any number of GPUs\n"
      print "One global batch, cut among the GPUs; the losses of all steps against those on one.\n"
      print "| configuration | sequences of a batch | GPUs | steps | first loss | last loss | losses that differ | largest relative difference | commit |"
      print "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    }
    {
      print "| " value("configuration") " | " value("global_sequences") " | " value("gpus") " | " value("steps") " | " value("first_loss") " | " value("last_loss") " | " \
        value("differing") " | " value("largest_difference") " | " value("commit") " |"
    }
  '
}

kill_table() {  # lines of kills, then of resumed runs
  awk "$awk_value"'
    !any++ {
      print "\n## A rank that dies, and another number of GPUs\n"
      print "The same batch. A rank is killed (SIGKILL); all start again by themselves from the newest checkpoint. Then SIGTERM, and the same command on"
      print "fewer GPUs. Losses are compared with those of a run on as many GPUs that nothing happened to and, after the change, with those on one.\n"
      print "| what | GPUs | after step | resumed from | seconds until a new step | exit code | steps compared | losses that differ | largest relative difference | commit |"
      print "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    }
    {
      killed = value("kind") == "kill"
      print "| " (killed ? "rank " value("rank") " killed" : "resumed on fewer") " | " (killed ? "" : value("before") " to ") value("gpus") " | " value("after_step") " | " \
        (killed ? value("resumed_from") : value("after_step")) " | " value("seconds_lost") " | " value("exit_code") " | " value("steps") " | " value("differing") " | " \
        value("largest_difference") " | " value("commit") " |"
    }
  '
}

write_page() {  # lines, machine
  echo "# Training on several GPUs: $2"
  echo
  echo "Written by \`scripts/bench_ranks.sh\` on $(date -u +%Y-%m-%d) from runs of the shipped configurations on the built-in corpus, sequences of" \
    "$tokens tokens, one host. Medians over the steps of a run but its first quarter; all runs of a row's commit one after the other on" \
    "the same machine, those that fit beside each other at the same time. With one GPU every GPU of the host trains alone, all at the same" \
    "time. \"Of linear\": tokens/s against the sum of what" \
    "the same GPUs reach alone (where only some were measured, as many times their mean); \"of the slowest\": against so many times the slowest of them, for which the others wait in each step. \"Memory before activations\" is" \
    "what weights, gradients and optimizer state take ([computed](../architecture.md#8-several-ranks-srctraindata_parallelh)), \"peak\" what the" \
    "allocator held."
  local rates
  rates=$(lines_of_kind rate "$1")
  [ -z "$rates" ] || { rates_table <<<"$rates"; residual_table <<<"$rates"; }
  lines_of_kind exchange "$1" | exchange_table
  lines_of_kind curve "$1" | curve_table
  { lines_of_kind kill "$1"; lines_of_kind resume "$1"; } | kill_table
}
