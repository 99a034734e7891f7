"""The network, small and fast for training; parameters are named as in Hugging Face checkpoints.

Letters: N pictures, B rows, T tokens in a row, P patches (64), H hidden (192).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.train_tiny.batch import Batch, attention_mask
from tools.train_tiny.config import SCALE_FACTOR, TEXT, VISION

NUM_CLASSES = 17
NUM_COLOURS = 13


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, TEXT["rms_norm_eps"])


class VisionAttention(nn.Module):
    """Full attention over patches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, p, width = x.shape
        layers = (self.q_proj, self.k_proj, self.v_proj)
        qkv = F.linear(
            x, torch.cat([m.weight for m in layers]), torch.cat([m.bias for m in layers])
        )
        q, k, v = qkv.view(n, p, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(out.transpose(1, 2).reshape(n, p, width))


class VisionMlp(nn.Module):
    """Two linear layers with a tanh-approximated GELU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class VisionLayer(nn.Module):
    """Pre-norm encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        width, eps = VISION["hidden_size"], VISION["layer_norm_eps"]
        self.self_attn = VisionAttention(width, VISION["num_attention_heads"])
        self.layer_norm1 = nn.LayerNorm(width, eps=eps)
        self.mlp = VisionMlp(width, VISION["intermediate_size"])
        self.layer_norm2 = nn.LayerNorm(width, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class VisionEmbeddings(nn.Module):
    """Patches and their learnt positions."""

    def __init__(self) -> None:
        super().__init__()
        width, patch = VISION["hidden_size"], VISION["patch_size"]
        self.patch_embedding = nn.Conv2d(3, width, patch, patch)
        self.position_embedding = nn.Embedding((VISION["image_size"] // patch) ** 2, width)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        return x + self.position_embedding.weight


class Layers(nn.Module):
    """Holds the encoder layers under the name that checkpoints use."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VisionLayer() for _ in range(VISION["num_hidden_layers"]))


class VisionModel(nn.Module):
    """Pixels f32 [N, 3, 96, 96] in -1..1 to patch features [N, 64, H]."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = VisionEmbeddings()
        self.encoder = Layers()
        self.post_layernorm = nn.LayerNorm(VISION["hidden_size"], eps=VISION["layer_norm_eps"])

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embeddings(pixels)
        for layer in self.encoder.layers:
            x = layer(x)
        return self.post_layernorm(x)


class Projection(nn.Module):
    """The only weight of the connector."""

    def __init__(self) -> None:
        super().__init__()
        inner = VISION["hidden_size"] * SCALE_FACTOR**2
        self.proj = nn.Linear(inner, TEXT["hidden_size"], bias=False)


class Connector(nn.Module):
    """Pixel shuffle of 2 x 2 patches and a projection: [N, 64, H] to [N, 16, H]."""

    def __init__(self) -> None:
        super().__init__()
        self.modality_projection = Projection()

    def forward(self, x: Tensor) -> Tensor:
        n, p, width = x.shape
        s, side = SCALE_FACTOR, int(p**0.5)
        x = x.view(n, side // s, s, side // s, s, width).permute(0, 1, 3, 2, 4, 5)
        return self.modality_projection.proj(x.reshape(n, p // s**2, width * s**2))


class TextAttention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        width, dim = TEXT["hidden_size"], TEXT["head_dim"]
        self.heads, self.kv, self.dim = (
            TEXT["num_attention_heads"],
            TEXT["num_key_value_heads"],
            dim,
        )
        self.q_proj = nn.Linear(width, self.heads * dim, bias=False)
        self.k_proj = nn.Linear(width, self.kv * dim, bias=False)
        self.v_proj = nn.Linear(width, self.kv * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, width, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        b, t, _ = x.shape
        weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        qkv = F.linear(x, weight).view(b, t, self.heads + 2 * self.kv, self.dim).transpose(1, 2)
        qk, v = qkv.split([self.heads + self.kv, self.kv], 1)
        half_a, half_b = qk.chunk(2, -1)
        cos, sin = rope
        qk = torch.cat([half_a * cos - half_b * sin, half_b * cos + half_a * sin], -1)
        q, k = qk.split([self.heads, self.kv], 1)
        shape = (b, self.heads, t, self.dim)
        out = F.scaled_dot_product_attention(q, k.expand(shape), v.expand(shape), attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


class TextMlp(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        width, inner = TEXT["hidden_size"], TEXT["intermediate_size"]
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class TextLayer(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = TextAttention()
        self.mlp = TextMlp()
        self.input_layernorm = Norm(TEXT["hidden_size"])
        self.post_attention_layernorm = Norm(TEXT["hidden_size"])

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor, chosen: Tensor | None
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, mask)
        x = x if chosen is None else x[chosen]
        return x + self.mlp(self.post_attention_layernorm(x))


class TextModel(nn.Module):
    """Decoder over packed rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(TEXT["vocab_size"], TEXT["hidden_size"])
        self.layers = nn.ModuleList(TextLayer() for _ in range(TEXT["num_hidden_layers"]))
        self.norm = Norm(TEXT["hidden_size"])

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, chosen: Tensor | None) -> Tensor:
        half = torch.arange(0, TEXT["head_dim"], 2, dtype=torch.float32) / TEXT["head_dim"]
        angles = positions[:, None, :, None] / TEXT["rope_theta"] ** half
        rope = (angles.cos(), angles.sin())
        for layer in self.layers[:-1]:
            x = layer(x, rope, mask, None)
        return self.norm(self.layers[-1](x, rope, mask, chosen))


class Inner(nn.Module):
    """The part of the network that checkpoints call `model`."""

    def __init__(self) -> None:
        super().__init__()
        self.vision_model = VisionModel()
        self.connector = Connector()
        self.text_model = TextModel()


class TinyVlm(nn.Module):
    """The whole network with its auxiliary heads (`aux.*`, left out of the export)."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Inner()
        self.aux = nn.Linear(VISION["hidden_size"], NUM_CLASSES + NUM_COLOURS + 2)
        self.apply(initialise)

    def see(self, pixels: Tensor) -> Tensor:
        """uint8 [N, 96, 96, 3] to patch features [N, 64, H]."""
        x = pixels.permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)
        return self.model.vision_model(x)

    def hidden(self, batch: Batch, patches: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Final hidden states [B, T, H], or [K, H] at the K positions chosen by a bool [B, T]."""
        features = self.model.connector(patches)[batch.tile_of_slot]
        x = self.model.text_model.embed_tokens(batch.tokens)
        x = x.masked_scatter(batch.slots[..., None], features.reshape(-1, x.shape[-1]))
        return self.model.text_model(x, batch.positions, attention_mask(batch.branches), chosen)

    def losses(self, batch: Batch, with_text: bool) -> dict[str, Tensor]:
        """Mean losses: what each patch shows and, if wanted, `text` (answers)."""
        patches = self.see(batch.pixels)
        kinds, colours, centres = self.aux(patches).split([NUM_CLASSES, NUM_COLOURS, 2], -1)
        losses = {
            "kinds": patch_loss(kinds, batch.classes),
            "colours": patch_loss(colours, batch.colours),
            "centres": patch_loss(centres, batch.centres),
        }
        if with_text:
            chosen = batch.targets >= 0
            hidden = self.hidden(batch, patches, chosen)
            logits = F.linear(hidden, self.model.text_model.embed_tokens.weight)
            targets = batch.targets[chosen]
            losses["text"] = F.cross_entropy(logits, targets)
            losses["hit"] = (logits.detach().argmax(-1) == targets).float().mean()
        return losses


def patch_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over patches; those that show nothing (label 0) count a tenth."""
    weight = torch.ones(logits.shape[-1])
    weight[0] = 0.1
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight)


def initialise(module: nn.Module) -> None:
    """Normal 0.02 as in the configs; zero biases."""
    if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02 if not isinstance(module, nn.Conv2d) else 0.03)
    if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
        nn.init.zeros_(module.bias)
