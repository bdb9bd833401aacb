"""A frozen Llama with adapters on its linear layers, written with what PyTorch 1.13 has for such a step."""

import math

import torch
import torch.nn.functional as F


class Lora(torch.nn.Module):
    """Computes W x + 2 B A x, since alpha is twice the rank."""

    def __init__(self, cols, rows, rank):
        super().__init__()
        self.base = torch.nn.Linear(cols, rows, bias=False).requires_grad_(False)
        self.a, self.b = torch.nn.Linear(cols, rank, bias=False), torch.nn.Linear(rank, rows, bias=False)
        torch.nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x) * 2.0)


class RmsNorm(torch.nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(width), requires_grad=False), eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Block(torch.nn.Module):
    def __init__(self, config, rank):
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.heads, self.kv = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config.get("head_dim") or width // self.heads
        self.norm1, self.norm2 = (RmsNorm(width, config["rms_norm_eps"]) for _ in range(2))
        self.q, self.o = Lora(width, self.heads * self.dim, rank), Lora(self.heads * self.dim, width, rank)
        self.k, self.v = (Lora(width, self.kv * self.dim, rank) for _ in range(2))
        self.gate, self.up = (Lora(width, inner, rank) for _ in range(2))
        self.down = Lora(inner, width, rank)

    def turn(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-b, a], dim=-1) * sin

    def forward(self, x, cos, sin, mask):
        batch, seq, _ = x.shape
        normed = self.norm1(x)
        q, k, v = (f(normed).view(batch, seq, -1, self.dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        k, v = (each.repeat_interleave(self.heads // self.kv, dim=1) for each in (k, v))
        weights = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(self.dim) + mask, dim=-1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(batch, seq, -1))
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def prepare_lora(task):
    config, rank, (batch, seq) = task["config"], task["rank"], task["shape"]
    vocab, width = config["vocab_size"], config["hidden_size"]
    table = torch.randn(vocab, width) * 0.02
    head = table if config["tie_word_embeddings"] else torch.randn(vocab, width) * 0.02
    blocks = torch.nn.ModuleList(Block(config, rank) for _ in range(config["num_hidden_layers"]))
    norm = RmsNorm(width, config["rms_norm_eps"])
    trained = [p for p in blocks.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=task["lr"])
    ids = torch.randint(vocab, (batch, seq + 1))
    mask = torch.full((seq, seq), float("-inf")).triu(1)
    dim = blocks[0].dim
    frequencies = config["rope_theta"] ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.arange(seq)[:, None] * frequencies
    cos, sin = (torch.cat([each, each], dim=-1) for each in (angles.cos(), angles.sin()))

    def run():
        x = F.embedding(ids[:, :-1], table)
        for block in blocks:
            x = block(x, cos, sin, mask)
        logits = norm(x) @ head.t()
        loss = F.cross_entropy(logits.view(-1, vocab), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return run
