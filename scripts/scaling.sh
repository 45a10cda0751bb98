#!/usr/bin/env bash
# Step time of data parallel training with ZeRO-1 on paper (docs/scaling.md): what one GPU computes, what the links carry, and
# how much of that the backward and forward passes hide. Prints a table over numbers of GPUs.
#   scripts/scaling.sh [NAME=VALUE...]
#     parameters=1365677056      of the model
#     tokens=524288              of a global batch
#     sequence=4096              tokens of a sequence; a GPU takes whole ones
#     rate=72000                 tokens/s of one GPU, without the optimizer
#     fixed_ms=3                 of a micro-batch, whatever its size: launches, kernels that do not fill the GPU
#     micro_tokens=32768         largest micro-batch of a GPU
#     gpus="8 16 32 64"          numbers to print
#     node=8                     GPUs of a node
#     scatter=265 gather=268     GB/s of a reduce-scatter and an all-gather within a node (bus rates)
#     nics=400                   GB/s of all network adapters of a node together, as they come: 8 x 400 Gb/s
#     nic_share=0.85             of it that collectives reach
#     hop_us=8 node_hop_us=20    of a step of a ring, within a node and between nodes
#     memory=4240                GB/s of a GPU's memory, as copied
#     slowed=0.8                 of its time that a hidden collective still costs, as measured: its channels displace blocks of kernels that
#                                fill the GPU once, and these then run twice
#     bucket=16777216            elements of a bucket
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parameters=1365677056 tokens=524288 sequence=4096 rate=72000 fixed_ms=3 micro_tokens=32768 gpus="8 16 32 64" node=8
scatter=265 gather=268 nics=400 nic_share=0.85 hop_us=8 node_hop_us=20 memory=4240 slowed=0.8 bucket=16777216
known=" parameters tokens sequence rate fixed_ms micro_tokens gpus node scatter gather nics nic_share hop_us node_hop_us memory slowed bucket "
for argument in "$@"; do
  name=${argument%%=*}
  value=${argument#*=}
  [[ $argument == *=* && $known == *" $name "* ]] || fail 2 "expected NAME=VALUE with one of$known, got $argument"
  number='[0-9]+(\.[0-9]+)?(e[0-9]+)?'
  [[ $value =~ ^$number( $number)*$ ]] || fail 2 "$name: expected a number, got \"$value\""
  printf -v "$name" '%s' "$value"
done

echo "| GPUs | nodes | tokens a GPU | compute ms | reduce-scatter ms | all-gather ms | exposed ms | optimizer ms | step ms | tokens/s | of linear |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
awk -v P="$parameters" -v B="$tokens" -v T="$sequence" -v rate="$rate" -v fixed="$fixed_ms" -v micro="$micro_tokens" \
  -v list="$gpus" -v node="$node" -v rs_bus="$scatter" -v ag_bus="$gather" -v nics="$nics" -v nic_share="$nic_share" \
  -v hop="$hop_us" -v node_hop="$node_hop_us" -v memory="$memory" -v slowed="$slowed" -v bucket="$bucket" '
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
  function step(G,    share, micros, pieces, last) {
    share = B / G
    micros = up(share / micro)
    pieces = up(P / bucket)
    compute = 1000 * share / rate + micros * fixed                                     # (1)
    forward = compute / micros / 3                                                     # (2)
    backward = 2 * forward
    rs = ring(G, 4 * P, pieces, rs_bus)                                                # (3)
    ag = ring(G, 2 * P, pieces, ag_bus)
    # (4): the last bucket of gradients and the first of weights have nothing to hide behind.
    last = G > 1 ? 1 / pieces : 0
    exposed = most(rs * last, rs - backward * (1 - last)) + most(ag * last, ag - forward * (1 - last))
    hidden = rs + ag - exposed
    optimizer = (30 * P / G + 4 * P + 4 * P / G) / (memory * 1e6)                      # (5)
    return compute + exposed + slowed * hidden + optimizer
  }
  BEGIN {
    one = step(1)
    count = split(list, numbers, " ")
    for (i = 1; i <= count; i++) {
      G = numbers[i]
      if (B / G < T) {
        printf "| %d | %d | less than a sequence of %d: data parallelism ends here | | | | | | | | |\n", G, up(G / node), T
        continue
      }
      ms = step(G)
      printf "| %d | %d | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %d | %.1f %% |\n", G, up(G / node), B / G, compute, rs, ag, \
        exposed, optimizer, ms, 1000 * B / ms, 100 * one / (G * ms)
    }
    # (6): fewer tokens a GPU than this, and backward no longer hides the gradients of the last number printed.
    printf "\nBackward hides the reduce-scatter of %d GPUs from %d tokens a GPU on (one micro-batch), forward the all-gather from %d.\n", G, \
      1.5 * ring(G, 4 * P, up(P / bucket), rs_bus) / 1000 * rate, 3 * ring(G, 2 * P, up(P / bucket), ag_bus) / 1000 * rate
    printf "Weights, gradients, moments: %.1f GiB a GPU with one, %.1f with %d.\n", 18 * P / 2^30, (6 + 12 / G) * P / 2^30, G
  }
'
