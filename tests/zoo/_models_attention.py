"""Attention written with torch.nn: a softmax bounds the weights, not the values."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from zoo._specimen import BOUNDED, UNBOUNDED, Family, compose

house = Family("attention")
T, D = 4, 8


def tokens():
    return (torch.randn(2, T, D),)


def encoder_layer(**rest):
    return nn.TransformerEncoderLayer(D, 2, 16, dropout=0.1, batch_first=True, **rest)


@house.unbounded("a convex combination of values that are linear in x", degree=1.0)
def self_attention():
    def forward(m, x):
        return m.attention(x, x, x, need_weights=False)[0]

    return compose(forward, attention=nn.MultiheadAttention(D, 2, batch_first=True)), tokens()


@house.bounded("values are linear in normalized tokens")
def self_attention_after_norm():
    def forward(m, x):
        h = m.norm(x)
        return m.attention(h, h, h, need_weights=False)[0]

    return compose(
        forward, norm=nn.LayerNorm(D), attention=nn.MultiheadAttention(D, 2, batch_first=True)
    ), tokens()


@house.unbounded(
    "weights are probabilities; the mixture of values is not", outputs=(UNBOUNDED, BOUNDED), degree=1.0
)
def attention_with_its_weights():
    def forward(m, x):
        return m.attention(x, x, x)

    return compose(forward, attention=nn.MultiheadAttention(D, 2, batch_first=True)), tokens()


@house.unbounded(
    "queries and keys only choose; the values carry",
    alone={"query": BOUNDED, "memory": UNBOUNDED},
    degree=1.0,
)
def cross_attention():
    def forward(m, query, memory):
        return m.attention(query, memory, memory, need_weights=False)[0]

    return compose(forward, attention=nn.MultiheadAttention(D, 2, batch_first=True)), (
        torch.randn(2, 3, D),
        torch.randn(2, T, D),
    )


@house.unbounded("softmax(QKᵀ/√d)·V written out, V linear in x", degree=1.0)
def attention_by_hand():
    def forward(m, x):
        q, k, v = m.qkv(x).chunk(3, -1)
        return m.out(torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), -1) @ v)

    return compose(forward, qkv=nn.Linear(D, 3 * D), out=nn.Linear(D, 2)), tokens()


@house.unbounded("normalized queries and keys leave the values linear", degree=1.0)
def attention_with_normalized_queries_and_keys():
    def forward(m, x):
        q, k, v = m.qkv(x).chunk(3, -1)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        return m.out(functional.scaled_dot_product_attention(q, k, v, scale=10.0))

    return compose(forward, qkv=nn.Linear(D, 3 * D), out=nn.Linear(D, 2)), tokens()


@house.bounded("φ > 0 and bounded on normalized tokens; the denominator is at least 1e-2")
def linear_attention_after_norm():
    def forward(m, x):
        q, k, v = m.qkv(m.norm(x)).chunk(3, -1)
        q, k = functional.elu(q) + 1.0, functional.elu(k) + 1.0
        context = k.transpose(-2, -1) @ v
        scale = q @ k.sum(1).unsqueeze(-1) + 1e-2
        return m.out((q @ context) / scale)

    return compose(forward, norm=nn.LayerNorm(D), qkv=nn.Linear(D, 3 * D), out=nn.Linear(D, 2)), tokens()


@house.unbounded("one learned query, values linear in x", degree=1.0)
def attention_pooling():
    def forward(m, x):
        weights = torch.softmax(x @ m.query / math.sqrt(D), 1)
        return m.head((weights.unsqueeze(-1) * x).sum(1))

    return compose(forward, query=nn.Parameter(torch.randn(D)), head=nn.Linear(D, 2)), tokens()


@house.bounded("the same on normalized tokens")
def attention_pooling_after_norm():
    def forward(m, x):
        x = m.norm(x)
        weights = torch.softmax(x @ m.query / math.sqrt(D), 1)
        return m.head((weights.unsqueeze(-1) * x).sum(1))

    return (
        compose(forward, norm=nn.LayerNorm(D), query=nn.Parameter(torch.randn(D)), head=nn.Linear(D, 2)),
        tokens(),
    )


house.add("encoder_layer_post_norm", lambda: (encoder_layer(), tokens()), BOUNDED, "it ends in a norm")
house.add(
    "encoder_layer_pre_norm",
    lambda: (encoder_layer(norm_first=True), tokens()),
    UNBOUNDED,
    "x + attention(norm x) + …: the skip is open",
    codes="FF002",
    degree=1.0,
)
house.add(
    "encoder_pre_norm_with_final_norm",
    lambda: (
        nn.TransformerEncoder(
            encoder_layer(norm_first=True, activation="gelu"), 2, nn.LayerNorm(D), enable_nested_tensor=False
        ),
        tokens(),
    ),
    BOUNDED,
    "the final norm closes the skips",
)
house.add(
    "encoder_pre_norm_without_final_norm",
    lambda: (
        nn.TransformerEncoder(encoder_layer(norm_first=True), 2, enable_nested_tensor=False),
        tokens(),
    ),
    UNBOUNDED,
    "a stack of pre-norm layers is x plus bounded terms",
    codes="FF002",
    degree=1.0,
    slow=True,
)


@house.bounded(
    "post-norm decoder: its last step is a norm", alone={"target": BOUNDED, "memory": BOUNDED}, slow=True
)
def decoder_layer_post_norm():
    def forward(m, target, memory):
        return m.layer(target, memory)

    return compose(forward, layer=nn.TransformerDecoderLayer(D, 2, 16, batch_first=True)), (
        torch.randn(2, 3, D),
        torch.randn(2, T, D),
    )


@house.unbounded(
    "a pre-norm decoder adds the raw target, and values of a memory that is not normalized",
    alone={"target": UNBOUNDED, "memory": UNBOUNDED},
    degree=1.0,
)
def decoder_layer_pre_norm():
    def forward(m, target, memory):
        return m.layer(target, memory)

    return compose(forward, layer=nn.TransformerDecoderLayer(D, 2, 16, batch_first=True, norm_first=True)), (
        torch.randn(2, 3, D),
        torch.randn(2, T, D),
    )


@house.bounded("encoder and decoder both end in a norm; a causal mask of −∞ only closes weights", slow=True)
def full_transformer_causal():
    def forward(m, source, target):
        return m.net(source, target, tgt_mask=m.mask, tgt_is_causal=True)

    mask = nn.Transformer.generate_square_subsequent_mask(3).double().float()
    return compose(forward, net=nn.Transformer(D, 2, 1, 1, 16, batch_first=True), mask=mask), (
        torch.randn(2, T, D),
        torch.randn(2, 3, D),
    )


class Decoder(nn.Module):
    """A GPT in thirty lines, over real-valued tokens or ids."""

    def __init__(self, final, ids=False):
        super().__init__()
        self.embed = nn.Embedding(11, D) if ids else nn.Linear(3, D)
        self.position = nn.Parameter(0.1 * torch.randn(T, D))
        self.norm1, self.qkv, self.proj = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.norm2, self.fc = (
            nn.LayerNorm(D),
            nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D)),
        )
        self.final = nn.LayerNorm(D) if final else nn.Identity()
        self.head = nn.Linear(D, 11, bias=False)
        self.register_buffer("causal", torch.tril(torch.ones(T, T)).bool())

    def forward(self, x):
        h = self.embed(x) + self.position
        q, k, v = (
            part.unflatten(-1, (2, D // 2)).transpose(1, 2) for part in self.qkv(self.norm1(h)).chunk(3, -1)
        )
        score = (q @ k.transpose(-2, -1) / math.sqrt(D // 2)).masked_fill(~self.causal, float("-inf"))
        h = h + self.proj((torch.softmax(score, -1) @ v).transpose(1, 2).flatten(2))
        h = h + self.fc(self.norm2(h))
        return self.head(self.final(h))


house.add(
    "small_gpt_on_real_tokens",
    lambda: (Decoder(True), (torch.randn(2, T, 3),)),
    BOUNDED,
    "the final norm closes the skips",
)
house.add(
    "small_gpt_on_real_tokens_without_final_norm",
    lambda: (Decoder(False), (torch.randn(2, T, 3),)),
    UNBOUNDED,
    "the embedding runs along the skips to the head",
    codes="FF002",
    degree=1.0,
)
house.add(
    "small_gpt_on_ids_without_final_norm",
    lambda: (Decoder(False, ids=True), (torch.randint(11, (2, T)),)),
    BOUNDED,
    "a finite vocabulary: there are finitely many inputs",
    absent="FF001 FF002",
)


class SmallViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, D, 4, 4)
        self.cls, self.position = nn.Parameter(torch.randn(1, 1, D)), nn.Parameter(torch.randn(1, 5, D))
        layer = encoder_layer(norm_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 3)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.encoder(x))[:, 0])


house.add(
    "small_vit",
    lambda: (SmallViT(), (torch.randn(2, 3, 8, 8),)),
    BOUNDED,
    "the norm before the head closes the skips",
)


@house.bounded("a lookup and a fixed table: finitely many rows", bound=None)
def embedding_with_positions():
    def forward(m, ids):
        return m.head(torch.relu(m.fc(m.token(ids) + m.position(m.steps))))

    return (
        compose(
            forward,
            token=nn.Embedding(11, D),
            position=nn.Embedding(T, D),
            steps=torch.arange(T),
            fc=nn.Linear(D, D),
            head=nn.Linear(D, 11),
        ),
        (torch.randint(11, (2, T)),),
    )


@house.unbounded(
    "token ids are bounded by nature, the numbers beside them are not",
    alone={"numbers": UNBOUNDED},
    degree=1.0,
)
def embedding_beside_real_features():
    def forward(m, ids, numbers):
        return m.head(torch.relu(torch.cat([m.token(ids), m.fc(numbers)], -1)))

    return (
        compose(forward, token=nn.Embedding(11, D), fc=nn.Linear(3, D), head=nn.Linear(2 * D, 1)),
        (torch.randint(11, (2,)), torch.randn(2, 3)),
    )
