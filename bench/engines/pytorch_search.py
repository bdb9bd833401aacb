"""Times steps of an encoder that learns pairs, written with what PyTorch 1.13 has. Reads a task from stdin."""

import json
import re
import sys
import time

import torch
import torch.nn.functional as F

task = json.load(sys.stdin)
torch.set_num_threads(1)
torch.manual_seed(1)
ids = {token: i for i, token in enumerate(task["vocab"])}
width, heads, inner = task["width"], task["heads"], task["inner"]


def tokens_of(text):
    words = re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower())[: task["seq"] - 2]
    return [ids["[CLS]"], *(ids.get(word, ids["[UNK]"]) for word in words), ids["[SEP]"]]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width) for _ in range(4))
        self.up, self.down = torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)
        self.norm1, self.norm2 = (torch.nn.LayerNorm(width, 1e-12) for _ in range(2))

    def forward(self, x, mask):
        batch, seq, _ = x.shape
        q, k, v = (f(x).view(batch, seq, heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(2, 3) / (width // heads) ** 0.5 + mask, dim=-1)
        x = self.norm1(x + self.o((weights @ v).transpose(1, 2).reshape(batch, seq, width)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(len(ids), width)
        self.places, self.types = torch.nn.Embedding(512, width), torch.nn.Embedding(2, width)
        self.norm = torch.nn.LayerNorm(width, 1e-12)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(task["layers"]))

    def forward(self, texts):
        longest = max(map(len, texts))
        rows = torch.tensor([row + [0] * (longest - len(row)) for row in texts])
        is_text = torch.tensor([[1.0] * len(row) + [0.0] * (longest - len(row)) for row in texts])
        mask = ((1 - is_text) * torch.finfo(torch.float32).min)[:, None, None]
        x = self.norm(self.words(rows) + self.places(torch.arange(longest)) + self.types(torch.zeros_like(rows)))
        for block in self.blocks:
            x = block(x, mask)
        pooled = (x * is_text[..., None]).sum(1) / is_text.sum(1, keepdim=True)
        return F.normalize(pooled, dim=-1)


model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), weight_decay=0.0)
times = []
for start in range(0, len(task["texts"]), task["batch"]):
    pairs = task["texts"][start : start + task["batch"]]
    began = time.process_time()
    rows = model([tokens_of(pair[side]) for side in ("query", "positive") for pair in pairs])
    queries, documents = rows.chunk(2)
    scores, own = queries @ documents.t() / 0.05, torch.arange(len(pairs))
    loss = (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    loss.item()
    times.append((time.process_time() - began) * 1000)
json.dump(times, sys.stdout)
