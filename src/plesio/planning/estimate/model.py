"""What is trained, by the numbers that decide its cost: parameters and FLOPs.

A multiplication and an addition are 2 FLOPs. Forward, a weight of a matrix costs 2 FLOPs a token, and attention
``4 s² a d`` a sequence and layer (scores and their sum over values, a heads of size d). A causal mask saves nothing in
these counts, as nobody's published FLOPs subtract it. The backward pass costs twice the forward one. *Model* FLOPs are
these three, *hardware* FLOPs add what is computed anew, so with full recomputation they are nearly 4/3 of the model's
(Korthikanti et al. 2022, appendix A). For a GPT with full recomputation they come to

    96 B s l h² (1 + s/6h + V/16lh)                                       (Narayanan et al. 2021, equation 3)
"""

from dataclasses import dataclass

from plesio.core.errors import ArgumentError, ConfigError
from plesio.cost.activations import Recomputation

__all__ = ["Convolutional", "Model", "Transformer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder-only transformer of the GPT or the Llama family.

    Attributes:
        name: What people call it.
        num_layers: l.
        hidden_size: h.
        num_heads: a, of queries.
        num_kv_heads: Heads of keys and values, which groups of query heads share.
        ffn_size: Width inside of a feed-forward network, of one expert if there are several.
        vocabulary_size: V, with the padding that is trained.
        sequence_length: s, tokens.
        gated: The feed-forward network has a third matrix that gates (SwiGLU).
        biases: Linear layers have biases and norms have shifts, and positions have an embedding, as in GPT.
        dropout: Activations are dropped while training, so masks are kept.
        tied_embeddings: The output matrix is the embedding's.
        head_size: d; None is ``h / a``.
        num_experts: BatchSource-forward networks a layer.
        experts_per_token: How many of them a token goes through.

    >>> gpt3 = Transformer(
    ...     name="GPT-3", num_layers=96, hidden_size=12288, num_heads=96, num_kv_heads=96, ffn_size=49152,
    ...     vocabulary_size=51200, sequence_length=2048, biases=True, tied_embeddings=True,
    ... )
    >>> f"{gpt3.num_parameters:.4g}", f"{gpt3.forward_flops:.4g}"
    ('1.746e+11', '7.349e+14')
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    ffn_size: int
    vocabulary_size: int
    sequence_length: int
    gated: bool = False
    biases: bool = False
    dropout: bool = False
    tied_embeddings: bool = False
    head_size: int | None = None
    num_experts: int = 1
    experts_per_token: int = 1

    def __post_init__(self) -> None:
        for what in _COUNTS:
            if getattr(self, what) < 1:
                raise ArgumentError(f"{self.name}: `{what}` is {getattr(self, what)}; write 1 or more")
        if self.head_size is None and self.hidden_size % self.num_heads:
            raise ConfigError(
                f"{self.name}: {self.num_heads} heads do not divide a hidden size of {self.hidden_size}; "
                "write a divisor, or head_size"
            )
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.name}: {self.num_kv_heads} heads of keys and values do not divide {self.num_heads} heads; "
                "write a divisor"
            )
        if self.experts_per_token > self.num_experts:
            raise ConfigError(
                f"{self.name}: a token goes to {self.experts_per_token} of {self.num_experts} experts; "
                f"write {self.num_experts} or less"
            )

    @property
    def attention_size(self) -> int:
        """``a d``: width of all queries together."""
        return self.num_heads * self.head_size if self.head_size else self.hidden_size

    @property
    def kv_size(self) -> int:
        """Width of all keys together, and of all values."""
        return self.attention_size * self.num_kv_heads // self.num_heads

    @property
    def attention_weights(self) -> int:
        """Weights of a layer's matrices for queries, keys, values and output."""
        return 2 * self.hidden_size * (self.attention_size + self.kv_size)

    @property
    def expert_weights(self) -> int:
        """Weights of one feed-forward network."""
        return (3 if self.gated else 2) * self.hidden_size * self.ffn_size

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer, with all its experts."""
        return self.dense_layer_parameters + self.num_experts * self.expert_parameters

    @property
    def dense_layer_parameters(self) -> int:
        """Parameters of a layer without its feed-forward networks."""
        norms = (4 if self.biases else 2) * self.hidden_size
        router = self.hidden_size * self.num_experts if self.num_experts > 1 else 0
        biases = self.attention_size + 2 * self.kv_size + self.hidden_size if self.biases else 0
        return self.attention_weights + norms + router + biases

    @property
    def expert_parameters(self) -> int:
        """Parameters of one feed-forward network."""
        return self.expert_weights + (self.ffn_size + self.hidden_size if self.biases else 0)

    @property
    def embedding_parameters(self) -> int:
        """Parameters before the layers: of tokens, and of positions if those are learnt."""
        positions = self.sequence_length if self.biases else 0
        return (self.vocabulary_size + positions) * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Parameters after the layers: the last norm, and the output matrix unless it is the embedding's."""
        norm = (2 if self.biases else 1) * self.hidden_size
        return norm + (0 if self.tied_embeddings else self.vocabulary_size * self.hidden_size)

    @property
    def num_parameters(self) -> int:
        """All parameters: for a GPT ``12 l h² (1 + 13/12h + (V+s)/12lh)`` (Narayanan et al. 2021, equation 2)."""
        return self.num_layers * self.layer_parameters + self.embedding_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that a token meets: those of its experts, and all others."""
        idle = (self.num_experts - self.experts_per_token) * self.expert_parameters
        return self.num_parameters - self.num_layers * idle

    @property
    def core_attention_flops(self) -> float:
        """Forward FLOPs of a sequence in a layer's scores and their sum over values: ``4 s² a d``."""
        return 4.0 * self.sequence_length**2 * self.attention_size

    @property
    def layer_flops(self) -> float:
        """Forward FLOPs of a sequence in a layer."""
        weights = self.attention_weights + self.experts_per_token * self.expert_weights
        return 2.0 * self.sequence_length * weights + self.core_attention_flops

    @property
    def head_flops(self) -> float:
        """Forward FLOPs of a sequence in the output matrix."""
        return 2.0 * self.sequence_length * self.hidden_size * self.vocabulary_size

    @property
    def forward_flops(self) -> float:
        """Forward FLOPs of a sequence."""
        return self.num_layers * self.layer_flops + self.head_flops

    @property
    def model_flops(self) -> float:
        """FLOPs of a sequence, forward and backward."""
        return 3 * self.forward_flops

    def hardware_flops(self, recomputation: Recomputation) -> float:
        """FLOPs of a sequence, forward, backward and computed anew."""
        anew = {"none": 0.0, "selective": self.core_attention_flops, "full": self.layer_flops}[recomputation]
        return self.model_flops + self.num_layers * anew

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sequence."""
        return self.sequence_length


_COUNTS = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "ffn_size",
    "vocabulary_size",
    "sequence_length",
    "num_experts",
    "experts_per_token",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolutional:
    """A network for images, of which the sums are enough: it is trained data parallel.

    Attributes:
        name: What people call it.
        num_parameters: Trained.
        forward_flops: FLOPs of an image; twice its multiplications.
        activation_values: Numbers of an image that the backward pass needs.
        num_layers: Layers with parameters, in which gradients become ready one after the other.
    """

    name: str
    num_parameters: int
    forward_flops: float
    activation_values: int
    num_layers: int

    @property
    def model_flops(self) -> float:
        """FLOPs of an image, forward and backward."""
        return 3 * self.forward_flops

    def hardware_flops(self, recomputation: Recomputation) -> float:
        """FLOPs of an image, as nothing is computed anew."""
        assert recomputation == "none"
        return self.model_flops

    @property
    def tokens_per_sample(self) -> int:
        """An image is one."""
        return 1


Model = Transformer | Convolutional
