"""Training of flash-linear-attention's (fla) DeltaNet beside `osdn train`, for tests/interop/fla_curve.sh.

  fla_curve.py make DIR                       saves a DeltaNet of 340M parameters with fla's random weights
  fla_curve.py train DIR SHARDS OUT ORDER     trains it from DIR on the batches that `osdn train` takes, rows of a batch
                                              straight or reversed; a loss a line into OUT
  fla_curve.py compare OSDN OSDN2 FLA FLA2    curves (metrics.jsonl or losses): program against program, and the bands

The step is that of configs/delta_net_340m.yaml: bf16 products from fp32 masters (norms stay in fp32), the mean loss of the
batch's targets, its gradient clipped at 1, AdamW (0.9, 0.95, 1e-15) with decay 0.1 of all but the norms,
linear warmup, cosine to a tenth.
"""

import json
import math
import os
import struct
import sys
import time

STEPS = int(os.environ.get("CURVE_STEPS", "300"))
WARMUP = int(os.environ.get("CURVE_WARMUP", "30"))
ROWS, LENGTH, SEED = 4, 2048, 42
PEAK, FINAL_RATIO, CLIP, DECAY = 1e-3, 0.1, 1.0, 0.1
MASK = (1 << 64) - 1


def mix64(value):
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def sample_order(seed, epoch, n):
    """The order of an epoch's samples (docs/formats/shard.md)."""
    half = 1
    while half < 31 and (1 << (2 * half)) < n:
        half += 1
    mask = (1 << half) - 1
    state = mix64(mix64(seed) ^ epoch)
    keys = []
    for _ in range(6):
        state = mix64(state)
        keys.append(state)

    def permute(value):
        left, right = value >> half, value & mask
        for key in keys:
            left, right = right, left ^ (mix64(right ^ key) & mask)
        return left << half | right

    def at(index):
        value = permute(index)
        while value >= n:
            value = permute(value)
        return value

    return at


def shard_tokens(folder):
    """Token data of the folder's one training shard, uint16 little-endian: contiguous, found by the layout message of their
    dataset (version 3, class contiguous, address, size)."""
    with open(f"{folder}/prepare.json") as file:
        train = json.load(file)["train"]
    assert len(train["shards"]) == 1, train
    size = 2 * train["tokens"]
    with open(f"{folder}/{train['shards'][0]}", "rb") as file:
        head = file.read(1 << 16)
        packed = struct.pack("<Q", size)
        places = [i for i in range(10, len(head)) if head[i : i + 8] == packed and head[i - 10 : i - 8] == b"\x03\x01"]
        assert len(places) == 1, places
        file.seek(*struct.unpack("<Q", head[places[0] - 8 : places[0]]))
        data = file.read(size)
    assert len(data) == size, (len(data), size)
    return bytearray(data)


def make(directory):
    import torch

    from fla_common import import_fla

    transformers = import_fla()
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(
        "delta_net", hidden_size=1024, num_hidden_layers=24, num_heads=8, vocab_size=32000, norm_eps=1e-6
    )
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    count = sum(p.numel() for p in model.parameters())
    assert count == 374_362_112, count
    model.to(torch.float32).save_pretrained(directory)


def learning_rate(step):
    if step <= WARMUP:
        return PEAK * step / WARMUP
    cosine = (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2
    return PEAK * (FINAL_RATIO + (1 - FINAL_RATIO) * cosine)


def train(directory, shards, output, row_order):
    import torch

    from fla_common import import_fla

    transformers = import_fla()
    tokens = torch.frombuffer(shard_tokens(shards), dtype=torch.int16).cuda().long() & 0xFFFF
    num_samples = (len(tokens) - 1) // LENGTH
    assert num_samples >= STEPS * ROWS, num_samples
    order = sample_order(mix64(SEED), 0, num_samples)  # the first (and only) source of the run

    model = transformers.AutoModelForCausalLM.from_pretrained(directory).float().cuda().train()
    weights = list(model.parameters())
    masters = [weight.detach().clone() for weight in weights]
    gradients = [torch.zeros_like(master) for master in masters]
    for master, gradient in zip(masters, gradients):
        master.grad = gradient
    matrices = [i for i, weight in enumerate(weights) if weight.ndim > 1]
    for i in matrices:
        weights[i].data = weights[i].data.bfloat16()
    decayed = [masters[i] for i in matrices]
    others = [master for i, master in enumerate(masters) if i not in set(matrices)]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95), eps=1e-15, fused=True)

    losses = []
    started = time.monotonic()
    for step in range(1, STEPS + 1):
        first = (step - 1) * ROWS
        rows = torch.stack(
            [tokens[i * LENGTH : (i + 1) * LENGTH + 1] for i in (order(first + row) for row in range(ROWS))]
        )
        if row_order == "reversed":
            rows = rows.flip(0)
        logits = model(rows[:, :-1].contiguous(), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        loss.backward()
        torch._foreach_copy_(gradients, [weight.grad for weight in weights])
        for weight in weights:
            weight.grad = None
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)).double())
        torch._foreach_mul_(gradients, torch.clamp(CLIP / norm, max=1.0).float())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_([weight.data for weight in weights], masters)
        losses.append(loss.detach())
        if step in (1, 10) or step % 50 == 0:
            print(f"step {step} of {STEPS}: loss {losses[-1].item():.5f}, {time.monotonic() - started:.1f} s", flush=True)
    losses = torch.stack(losses).tolist()
    with open(output, "w") as file:
        file.writelines(f"{loss!r}\n" for loss in losses)


def curve(path):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    losses = [line["loss"] if isinstance(line, dict) else line for line in lines]
    losses = losses[:STEPS]
    assert len(losses) == STEPS and all(math.isfinite(loss) for loss in losses), (path, len(losses))
    return losses


def difference(name, a, b):
    by_step = [x - y for x, y in zip(a, b)]
    rms = math.sqrt(sum(d * d for d in by_step) / STEPS)
    largest = max(by_step, key=abs)
    print(f"{name}: RMS {rms:.5f}, largest {largest:+.5f} at step {by_step.index(largest) + 1}, "
          f"mean {sum(by_step) / STEPS:+.5f}, of the last 50 steps {sum(by_step[-50:]) / 50:+.5f}")
    return rms


def compare(osdn, osdn_split, fla, fla_reversed):
    a, a2, b, b2 = map(curve, (osdn, osdn_split, fla, fla_reversed))
    for name, losses in (("osdn", a), ("fla", b)):
        print(f"{name}: loss {losses[0]:.5f} at step 1, {losses[STEPS // 10 - 1]:.5f} at step {STEPS // 10}, "
              f"{losses[STEPS // 3 - 1]:.5f} at step {STEPS // 3}, {losses[-1]:.5f} at step {STEPS}")
    print(f"first step, osdn - fla: {a[0] - b[0]:+.6f}")
    band = max(difference("osdn, passes of 4 rows - passes of 1", a, a2), difference("fla, rows straight - reversed", b, b2))
    cross = difference("osdn - fla", a, b)
    allowed = 2 * band
    print(f"curves {'agree' if cross <= allowed else 'differ'}: RMS {cross:.5f}, allowed {allowed:.5f}, twice the wider band")
    sys.exit(cross > allowed)


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "make":
        make(*rest)
    elif command == "train":
        train(*rest)
    else:
        compare(*rest)
