#!/usr/bin/env bash
# Step time of data parallel training with ZeRO-1 on paper (docs/scaling.md): what one GPU computes, what the links carry, and
# how much of that the backward and forward passes hide. Prints a table over numbers of GPUs.
#   scripts/scaling.sh [NAME=VALUE...]
#     parameters=1365677056      of the model
#     tokens=524288              of a global batch
#     tokens_a_gpu=0             instead of tokens: so many a GPU, however many there are; "of linear" is then one GPU's step over the job's
#     sequence=4096              tokens of a sequence; a GPU takes whole ones
#     rate=69500                 tokens/s of one GPU, without the optimizer and fixed_ms: as measured, 251 ms a step of 8 x 2048 tokens
#     fixed_ms=3                 of a micro-batch, whatever its size: launches, kernels that do not fill the GPU
#     micro_tokens=32768         largest micro-batch of a GPU
#     gpus="8 16 32 64"          numbers to print
#     node=8                     GPUs of a node
#     scatter=265 gather=268     GB/s of a reduce-scatter and an all-gather within a node (bus rates)
#     nics=400                   GB/s of all network adapters of a node together, as they come: 8 x 400 Gb/s
#     nic_share=0.85             of it that collectives reach
#     hop_us=8 node_hop_us=20    of a step of a ring, within a node and between nodes
#     memory=4240                GB/s of a GPU's memory, as copied
#     copied=0.76                of its time that a hidden exchange by copy engines still costs, in a job of one node: as measured on two GPUs
#     slowed=0.8                 and one of NCCL, between nodes, as measured on two GPUs: its channels displace blocks of kernels that
#                                fill the GPU once, and these then run twice
#     unequal=0.009              of its compute that a GPU waits for others whose steps vary, beside what the slowest is slower: measured on two
#     bucket=67108864            elements of a bucket; an eighth of the model at most
#     last=16777216              of those that make up the last bucket, which nothing hides
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parameters=1365677056 tokens=524288 tokens_a_gpu=0 sequence=4096 rate=69500 fixed_ms=3 micro_tokens=32768 gpus="8 16 32 64" node=8
scatter=265 gather=268 nics=400 nic_share=0.85 hop_us=8 node_hop_us=20 memory=4240 copied=0.76 slowed=0.8 unequal=0.009
bucket=67108864 last=16777216
known=" parameters tokens tokens_a_gpu sequence rate fixed_ms micro_tokens gpus node scatter gather nics nic_share hop_us node_hop_us memory copied slowed unequal bucket last "
for argument in "$@"; do
  name=${argument%%=*}
  value=${argument#*=}
  [[ $argument == *=* && $known == *" $name "* ]] || fail 2 "expected NAME=VALUE with one of$known, got $argument"
  number='[0-9]+(\.[0-9]+)?(e[0-9]+)?'
  [[ $value =~ ^$number( $number)*$ ]] || fail 2 "$name: expected a number, got \"$value\""
  printf -v "$name" '%s' "$value"
done

echo "| GPUs | nodes | tokens a GPU | compute ms | waiting ms | reduce-scatter ms | all-gather ms | exposed ms | optimizer ms | step ms | tokens/s | of linear |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
awk -v P="$parameters" -v B="$tokens" -v each="$tokens_a_gpu" -v T="$sequence" -v rate="$rate" -v fixed="$fixed_ms" -v micro="$micro_tokens" \
  -v list="$gpus" -v node="$node" -v rs_bus="$scatter" -v ag_bus="$gather" -v nics="$nics" -v nic_share="$nic_share" \
  -v hop="$hop_us" -v node_hop="$node_hop_us" -v memory="$memory" -v copied="$copied" -v slowed="$slowed" \
  -v unequal="$unequal" -v bucket="$bucket" -v last="$last" '
  function least(a, b) { return a < b ? a : b }
  function most(a, b) { return a > b ? a : b }
  function up(x) { return x == int(x) ? x : int(x) + 1 }
  # Milliseconds of a ring of G ranks over so many bytes in so many pieces: (3) of docs/scaling.md.
  function ring(G, bytes, pieces, bus,    nodes, rate_bus, steps) {
    if (G == 1) return 0
    nodes = up(G / node)
    rate_bus = nodes > 1 ? least(bus, nics * nic_share) : bus
    steps = (G - nodes) * hop + (nodes > 1 ? nodes * node_hop : 0)
    return bytes * (G - 1) / G / (rate_bus * 1e6) + pieces * steps / 1000
  }
  function share_of(G) { return each > 0 ? each : B / G }
  # Buckets are a grid, whose last one is cut up once more.
  function num_pieces(    large) {
    large = least(P / 8, bucket)
    return up(P / large) - 1 + up(large / least(large, last))
  }
  function step(G,    share, micros, pieces, unhidden) {
    share = share_of(G)
    micros = up(share / micro)
    pieces = num_pieces()
    compute = 1000 * share / rate + micros * fixed                                     # (1)
    forward = compute / micros / 3                                                     # (2)
    backward = 2 * forward
    rs = ring(G, 4 * P, pieces, rs_bus)                                                # (3)
    ag = ring(G, 2 * P, pieces, ag_bus)
    # (4): the last bucket of gradients and the first of weights have nothing to hide behind.
    unhidden = G > 1 ? least(P / 8, last) / P : 0
    exposed = most(rs * unhidden, rs - backward * (1 - unhidden)) + most(ag * unhidden, ag - forward * (1 - unhidden))
    hidden = rs + ag - exposed
    waiting = G > 1 ? unequal * compute : 0                                            # (5)
    optimizer = (30 * P / G + 4 * P + 4 * P / G) / (memory * 1e6)                      # (6)
    return compute + waiting + exposed + (G > node ? slowed : copied) * hidden + optimizer
  }
  BEGIN {
    one = step(1)
    count = split(list, numbers, " ")
    for (i = 1; i <= count; i++) {
      G = numbers[i]
      if (share_of(G) < T) {
        printf "| %d | %d | less than a sequence of %d: data parallelism ends here | | | | | | | | | |\n", G, up(G / node), T
        continue
      }
      ms = step(G)
      printf "| %d | %d | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %d | %.1f %% |\n", G, up(G / node), share_of(G), compute, waiting, rs, ag, \
        exposed, optimizer, ms, 1000 * share_of(G) * G / ms, 100 * one / (each > 0 ? ms : G * ms)
    }
    # Fewer tokens a GPU than this, and backward no longer hides the gradients of the last number printed.
    printf "\nBackward hides the reduce-scatter of %d GPUs from %d tokens a GPU on (one micro-batch), forward the all-gather from %d.\n", G, \
      1.5 * ring(G, 4 * P, num_pieces(), rs_bus) / 1000 * rate, 3 * ring(G, 2 * P, num_pieces(), ag_bus) / 1000 * rate
    printf "Weights, gradients, moments: %.1f GiB a GPU with one, %.1f with %d.\n", 18 * P / 2^30, (6 + 12 / G) * P / 2^30, G
  }
'
