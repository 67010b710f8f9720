"""Models small enough to run in numpy, one a way of writing a transformer."""

from stagedb.models.card import Card


def card(style: str, *, layers: int = 2, kv_heads: int = 2, tied: bool = False, qkv_bias: bool = False) -> Card:
    """`llama` (RMSNorm, rotary, gated, grouped heads), `gpt` (LayerNorm, learned positions, biases), `qwen3` (llama
    with normalised heads), `moe` (llama with four experts, two a token), or `deepseek` (with shared ones besides, and a
    dense first layer)."""
    gpt, moe = style == "gpt", style in ("moe", "deepseek")
    return Card(
        name=f"tiny-{style}",
        family=style,
        hidden=16,
        layers=layers,
        heads=4,
        kv_heads=4 if gpt else kv_heads,
        head_dim=4,
        ffn=24,
        vocab=512,
        vocab_multiple=1,
        norm="layernorm" if gpt else "rmsnorm",
        mlp="plain" if gpt else "gated",
        activation="gelu" if gpt else "silu",
        positions="learned" if gpt else "rotary",
        max_positions=8,
        tied=tied,
        linear_bias=gpt,
        qkv_bias=qkv_bias,
        parameters=0,
        experts=4 if moe else 0,
        top_k=2 if moe else 0,
        expert_ffn=8 if moe else 0,
        shared_ffn=12 if style == "deepseek" else 0,
        dense_layers=1 if style == "deepseek" else 0,
        qk_norm=style == "qwen3",
        source="made for tests",
    )
