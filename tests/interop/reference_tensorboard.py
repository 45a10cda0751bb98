"""Compares every scalar and step that TensorBoard reads below RUN/tensorboard with RUN/metrics.jsonl.

reference_tensorboard.py RUN    prints what differs, then the number of tags
"""
import json
import struct
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = sys.argv[1]
wanted = {}


def want(tag, step, value):
    if value is not None:
        wanted.setdefault(tag, []).append((step, struct.unpack("f", struct.pack("f", value))[0]))


for text in open(run + "/metrics.jsonl"):
    line = json.loads(text)
    step = line.pop("step")
    layers = line.pop("layers", {})
    for name, values in layers.items():
        for layer, value in enumerate(values):
            want("residual_%s/layer_%02d" % (name, layer), step, value)
    for key, value in line.items():
        if key.startswith("validation_"):
            want("validation/" + key[len("validation_") :], step, value)
        elif key in layers:
            want("residual/" + key, step, value)
        elif "second" in key or key in ("mfu", "gemm_utilization", "memory_gib"):
            want("speed/" + key, step, value)
        else:
            want("train/" + key, step, value)

reader = EventAccumulator(run + "/tensorboard", size_guidance={"scalars": 0})
reader.Reload()
found = {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
for tag in sorted(set(wanted) | set(found)):
    if wanted.get(tag) != found.get(tag):
        print("differs:", tag, wanted.get(tag), found.get(tag))
print("tags:", len(found))
