"""Ids that the sentencepiece library itself gives.

text OUT          writes 1,000 lines of difficult text
encode MODEL IN   prints the ids of the text in IN, as a JSON list
decode MODEL IN   prints the text of the ids in IN (a JSON list), without a line feed added
"""
import json
import pathlib
import random
import sys

import sentencepiece

PARTS = ["the ", "baker ", "  double", "   ", " leading", "\u4f60\u597d", "\u3053\u3093", "\U0001f600", "\U0001f469\u200d\U0001f680",
         "e\u0301", "n\u0303o", "\u0e01\u0e33", "\u0627\u0644", "<s>", "</s>", "<unk>", "<0x41>", "\t", "0.25", "\u00a0", "\ufeff",
         "\u2028", "\x01\x7f", "caf\u00e9", "CamelCase", "\U00020000", "...", "''", "\\n", "\u00df"]


def text(target):
    draw = random.Random(5)
    lines = ["".join(draw.choice(PARTS) for _ in range(draw.randint(0, 9))) for _ in range(1000)]
    pathlib.Path(target).write_bytes("\n".join(lines).encode())


def encode(model, source):
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    print(json.dumps(processor.encode(pathlib.Path(source).read_bytes().decode())))


def decode(model, source):
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    sys.stdout.buffer.write(processor.decode(json.loads(pathlib.Path(source).read_text())).encode())


if __name__ == "__main__":
    {"text": text, "encode": encode, "decode": decode}[sys.argv[1]](*sys.argv[2:])
