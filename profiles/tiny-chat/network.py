"""The network, a Qwen2 of a million parameters, and how it is written as GGUF."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from tokenizer import CONTROL, SPECIAL, Tokenizer
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the network."""

    vocabulary: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    inner: int = 384
    rope_base: float = 1_000_000.0
    epsilon: float = 1e-6
    context: int = 65536  # what the file says; training sees at most 1024 tokens

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.width // self.heads


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, shape: Shape, start: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((shape.width,), start))
        self.epsilon = shape.epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the two halves of each head by its position's angles, as llama.cpp's NEOX kind does."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Block(nn.Module):
    """Attention and a gated layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attn_norm, self.ffn_norm = Norm(shape), Norm(shape)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=True)
        self.o = nn.Linear(shape.width, shape.width, bias=False)
        self.gu = nn.Linear(shape.width, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)
        for linear in (self.qkv, self.gu):
            nn.init.normal_(linear.weight, std=shape.width**-0.5)
        nn.init.zeros_(self.qkv.bias)
        for linear in (self.o, self.down):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5 / math.sqrt(2 * shape.layers))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Add what the block has to say."""
        batch, length, width = x.shape
        parts = self.qkv(self.attn_norm(x)).view(batch, length, 3, self.shape.heads, self.shape.head)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.o(seen.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gu(self.ffn_norm(x)).chunk(2, -1)
        said: Tensor = self.down(F.silu(gate) * up)
        return x + said


class Network(nn.Module):
    """Embeddings, blocks and a norm; the output layer is the embedding's own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.emb = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape, 0.1)
        nn.init.normal_(self.emb.weight, std=0.5)
        with torch.no_grad():
            self._set_copying_heads()

    @property
    def layers(self) -> list[Block]:
        """The blocks, by their type."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def forward(self, ids: Tensor) -> Tensor:
        """Return the last hidden states."""
        angles = torch.arange(ids.shape[1]).float()[:, None] * self._frequencies()
        cos, sin = angles.cos(), angles.sin()
        x: Tensor = self.emb(ids)
        for block in self.layers:
            x = block(x, cos, sin)
        hidden: Tensor = self.norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the scores of every token."""
        return hidden @ self.emb.weight.T

    def _frequencies(self) -> Tensor:
        return self.shape.rope_base ** (-torch.arange(0, self.shape.head, 2).float() / self.shape.head)

    def _set_copying_heads(self) -> None:
        """Start with heads that copy, which minutes of training would not find.

        Heads 0 to 2 of the first block look 1, 2 and 3 tokens back. Heads 0 and 1 of the second look for a place whose
        previous token is the current one, and copy the token that stands there.
        """
        width, head, frequencies = self.shape.width, self.shape.head, self._frequencies()
        first, second = self.layers[:2]
        look, value = self._look_back(first, frequencies)
        slow = int((frequencies > 0.01).sum())
        rows = [*range(slow, head // 2), *range(head // 2 + slow, head)]
        for index in range(2):
            at = index * head
            chosen = torch.randperm(head)[: len(rows)]
            for offset, basis in ((0, value), (width, look)):
                wanted = torch.zeros(head, width)
                wanted[rows] = 2.5 * basis.T[chosen]
                second.qkv.weight[offset + at : offset + at + head] = wanted
            copied = _basis(width, head)
            second.qkv.weight[2 * width + at : 2 * width + at + head] = copied.T
            second.o.weight[:, at : at + head] = 0.5 * copied

    def _look_back(self, block: Block, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """Set the heads that look back; return what the first writes and reads."""
        width, head, strength = self.shape.width, self.shape.head, 6.0
        bases = []
        for index in range(3):
            at, turned = index * head, frequencies * (index + 1)
            block.qkv.bias[at : at + head // 2] = strength
            block.qkv.bias[at + head // 2 : at + head] = 0.0
            block.qkv.bias[width + at : width + at + head] = strength * torch.cat((turned.cos(), turned.sin()))
            for offset in (0, width):
                block.qkv.weight[offset + at : offset + at + head] *= 0.1
            look, value = _basis(width, head), _basis(width, head)
            block.o.weight[:, at : at + head] = 0.5 * look
            block.qkv.weight[2 * width + at : 2 * width + at + head] = value.T
            bases.append((look, value))
        return bases[0]


def _basis(width: int, head: int) -> Tensor:
    basis: Tensor = torch.linalg.qr(torch.randn(width, head)).Q
    return basis


def export(path: Path, network: Network, tokenizer: Tokenizer, template: str) -> None:
    """Write the network as an f16 GGUF file that appears at `path` in one step."""
    shape = network.shape
    beside = path.with_suffix(".part")
    writer = gguf.GGUFWriter(beside, "qwen2")
    writer.add_name("Deck Tiny")
    writer.add_type("model")
    writer.add_license("apache-2.0")
    writer.add_size_label(f"{sum(weight.numel() for weight in network.parameters()) / 1e6:.1f}M")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_chat_template(template)
    _add_tokenizer(writer, tokenizer)
    _add_tensors(writer, network)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    beside.replace(path)  # a server may have the old file mapped, so it is never written over


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([token.encode() for token in tokenizer.tokens])
    kinds = {token: gguf.TokenType.CONTROL if token in CONTROL else gguf.TokenType.USER_DEFINED for token in SPECIAL}
    plain = [gguf.TokenType.NORMAL] * tokenizer.first_special
    rest = tokenizer.tokens[tokenizer.first_special :]
    writer.add_token_types(plain + [kinds.get(token, gguf.TokenType.UNUSED) for token in rest])
    writer.add_token_merges([f"{first} {second}" for first, second in tokenizer.merges])
    end, nothing = tokenizer.ids["<|im_end|>"], tokenizer.ids["<|endoftext|>"]
    writer.add_eos_token_id(end)
    writer.add_eot_token_id(end)
    writer.add_bos_token_id(nothing)
    writer.add_pad_token_id(nothing)
    writer.add_add_bos_token(False)


def _add_tensors(writer: gguf.GGUFWriter, network: Network) -> None:
    tensors: dict[str, Tensor] = {"token_embd.weight": network.emb.weight, "output_norm.weight": network.norm.weight}
    for index, block in enumerate(network.layers):
        name = f"blk.{index}."
        tensors[name + "attn_norm.weight"] = block.attn_norm.weight
        tensors[name + "ffn_norm.weight"] = block.ffn_norm.weight
        for part, weight, bias in zip("qkv", block.qkv.weight.chunk(3), block.qkv.bias.chunk(3), strict=True):
            tensors[f"{name}attn_{part}.weight"] = weight
            tensors[f"{name}attn_{part}.bias"] = bias
        tensors[name + "attn_output.weight"] = block.o.weight
        tensors[name + "ffn_gate.weight"], tensors[name + "ffn_up.weight"] = block.gu.weight.chunk(2)
        tensors[name + "ffn_down.weight"] = block.down.weight
    for name, tensor in tensors.items():
        # llama.cpp keeps vectors in f32 in every type of file.
        kind = np.float32 if tensor.ndim == 1 else np.float16
        writer.add_tensor(name, np.ascontiguousarray(tensor.detach().float().numpy(), kind))
