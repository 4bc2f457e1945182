"""The model that is trained, by the numbers that decide its cost: parameters and FLOPs.

A multiplication and an addition are 2 FLOPs. Forward, a weight of a matrix costs 2 FLOPs a token, and attention
``4 s² a d`` a sequence and layer (scores and their sum over values, a heads of size d). A causal mask saves nothing in
these counts, as nobody's published FLOPs subtract it; a sliding window does. The backward pass costs twice the forward
one. *Model* FLOPs are these three, *hardware* FLOPs add what is computed anew, so with full recomputation they are
nearly 4/3 of the model's (Korthikanti et al. 2022, appendix A). For a GPT with full recomputation they come to

    96 B s l h² (1 + s/6h + V/16lh)                                       (Narayanan et al. 2021, equation 3)
"""

from dataclasses import dataclass
from functools import cached_property

from plesio.core.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)  # without slots: what follows from the sizes is found once
class Transformer:
    """A decoder-only transformer: GPT, Llama, and what has grown from them.

    Attributes:
        num_layers: Layers.
        hidden_size: Width between layers.
        num_heads: Heads of queries.
        num_kv_heads: Heads of keys and values, which groups of query heads share.
        ffn_size: Width inside a feed-forward network, of one expert if there are several.
        vocabulary_size: Words, with the padding that is trained.
        sequence_length: Tokens of a sequence.
        gated: Feed-forward networks have a third matrix that gates (SwiGLU).
        biases: Linear layers have biases, norms have shifts, and positions are learnt, as in GPT.
        dropout: Activations are dropped while training, so masks are kept.
        tied_embeddings: The output matrix is the embedding's.
        head_size: Width of a head; else the hidden size over the heads.
        num_experts: Feed-forward networks of a layer, of which each token goes through some.
        experts_per_token: How many of the experts a token goes through.
        expert_hosts: Hosts that a token's experts are on, at most; else any.
        capacity_factor: Tokens for which an expert computes, as a multiple of the mean; what it lacks is padding.
        shared_ffn_size: Width of shared experts, which all tokens go through beside their own; 0 is none.
        num_dense_layers: First layers that have one dense network instead of experts.
        dense_ffn_size: Width of that network.
        window: Tokens that a token attends to at most, itself among them (a sliding window).
        num_window_layers: Layers with that window; else all.
        parallel_blocks: Attention and feed-forward network read the same input (GPT-J, PaLM).
        query_key_norms: Queries and keys are normed (OLMo 2, Qwen 3).
        kv_rank: Width that keys and values are compressed to (latent attention, DeepSeek-V2).
        query_rank: Width that queries are compressed to.
        rope_size: Width that latent attention adds to a head for positions.

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
    expert_hosts: int | None = None
    capacity_factor: float = 1.0
    shared_ffn_size: int = 0
    num_dense_layers: int = 0
    dense_ffn_size: int = 0
    window: int | None = None
    num_window_layers: int | None = None
    parallel_blocks: bool = False
    query_key_norms: bool = False
    kv_rank: int | None = None
    query_rank: int | None = None
    rope_size: int = 0

    def __post_init__(self) -> None:
        for what in _COUNTS:
            number = getattr(self, what)
            if number is not None and number < 1:
                raise ArgumentError(f"{self.name}: `{what}` is {number}; write 1 or more")
        if self.head_size is None and self.hidden_size % self.num_heads:
            raise ArgumentError(
                f"{self.name}: {self.num_heads} heads do not divide a hidden size of {self.hidden_size}; "
                "write a divisor for `num_heads`, or `head_size`"
            )
        if self.num_heads % self.num_kv_heads:
            raise ArgumentError(
                f"{self.name}: {self.num_kv_heads} heads of keys and values do not divide {self.num_heads} heads; "
                "write a divisor for `num_kv_heads`"
            )
        if self.experts_per_token > self.num_experts:
            raise ArgumentError(
                f"{self.name}: a token goes to {self.experts_per_token} of {self.num_experts} experts; "
                f"write {self.num_experts} or less for `experts_per_token`"
            )
        if not self.capacity_factor >= 1:
            raise ArgumentError(
                f"{self.name}: `capacity_factor` is {self.capacity_factor:g}, which drops tokens; write 1 or more"
            )
        if self.num_experts == 1 and self.capacity_factor != 1:
            raise ArgumentError(f"{self.name}: `capacity_factor` is of experts, and there are none; leave it out")
        self._check_layers()
        self._check_latent()

    def _check_layers(self) -> None:
        for what in ("shared_ffn_size", "num_dense_layers", "dense_ffn_size", "num_window_layers"):
            if (getattr(self, what) or 0) < 0:
                raise ArgumentError(f"{self.name}: `{what}` is {getattr(self, what)}; write 0 or more")
        if self.num_experts == 1 and (self.num_dense_layers or self.dense_ffn_size or self.shared_ffn_size):
            raise ArgumentError(
                f"{self.name}: shared experts and first layers without experts are of a model that has experts; "
                "write `num_experts`"
            )
        if bool(self.num_dense_layers) != bool(self.dense_ffn_size):
            raise ArgumentError(
                f"{self.name}: `num_dense_layers` is {self.num_dense_layers} and `dense_ffn_size` "
                f"{self.dense_ffn_size}; write both, or neither"
            )
        if self.num_dense_layers > self.num_layers or (self.num_window_layers or 0) > self.num_layers:
            raise ArgumentError(
                f"{self.name}: `num_dense_layers` is {self.num_dense_layers} and `num_window_layers` "
                f"{self.num_window_layers or 0} of {self.num_layers} layers; write {self.num_layers} or less"
            )
        if self.num_window_layers is not None and self.window is None:
            raise ArgumentError(f"{self.name}: `num_window_layers` is of a sliding window; write `window`")

    def _check_latent(self) -> None:
        if self.kv_rank is None:
            if self.query_rank is not None or self.rope_size:
                raise ArgumentError(
                    f"{self.name}: `query_rank` and `rope_size` are of latent attention; write `kv_rank`"
                )
        elif self.num_kv_heads != self.num_heads:
            raise ArgumentError(
                f"{self.name}: latent attention has keys and values of every head; "
                f"write `num_kv_heads = {self.num_heads}`"
            )

    @cached_property
    def attention_size(self) -> int:
        """``a d``: width of all heads together, a of them of size d."""
        return self.num_heads * self.head_size if self.head_size else self.hidden_size

    @cached_property
    def kv_size(self) -> int:
        """Width of all values together, and of all keys without what latent attention adds for positions."""
        return self.attention_size * self.num_kv_heads // self.num_heads

    @cached_property
    def query_size(self) -> int:
        """Width of all queries together."""
        return self.attention_size + self.num_heads * self.rope_size

    @cached_property
    def attention_weights(self) -> int:
        """Weights of a layer's matrices for queries, keys, values and output."""
        hidden, output = self.hidden_size, self.attention_size
        if self.kv_rank is None:
            return 2 * hidden * (output + self.kv_size)
        # compressed (with one key for positions, which all heads share), and expanded for every head
        keys_and_values = hidden * (self.kv_rank + self.rope_size) + self.kv_rank * 2 * output
        rank = self.query_rank
        queries = hidden * self.query_size if rank is None else rank * (hidden + self.query_size)
        return queries + keys_and_values + hidden * output

    @cached_property
    def _expert_weights(self) -> int:
        """Weights of one feed-forward network, of one expert if there are several."""
        return self._ffn_weights(self.ffn_size)

    def _ffn_weights(self, size: int) -> int:
        return (3 if self.gated else 2) * self.hidden_size * size

    @cached_property
    def layer_parameters(self) -> int:
        """Parameters of a layer, with all its experts."""
        return self.common_parameters + self.num_experts * self.expert_parameters

    @cached_property
    def common_parameters(self) -> int:
        """Parameters of a layer that all its tokens meet: without its feed-forward network, or its experts."""
        router = self.hidden_size * self.num_experts if self.num_experts > 1 else 0
        return self._attention_parameters + router + self._ffn_weights(self.shared_ffn_size)

    @cached_property
    def dense_layer_parameters(self) -> int:
        """Parameters of one of the first layers, if those have no experts."""
        return self._attention_parameters + self._ffn_weights(self.dense_ffn_size)

    @cached_property
    def _attention_parameters(self) -> int:
        norms = (4 if self.biases else 2) * self.hidden_size
        if self.query_key_norms:
            norms += 2 * self.attention_size // self.num_heads
        norms += (self.kv_rank or 0) + (self.query_rank or 0)
        biases = self.attention_size + 2 * self.kv_size + self.hidden_size if self.biases else 0
        return self.attention_weights + norms + biases

    @cached_property
    def expert_parameters(self) -> int:
        """Parameters of one feed-forward network."""
        return self._expert_weights + (self.ffn_size + self.hidden_size if self.biases else 0)

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

    @cached_property
    def num_parameters(self) -> int:
        """All parameters: for a GPT ``12 l h² (1 + 13/12h + (V+s)/12lh)`` (Narayanan et al. 2021, equation 2)."""
        layers = (self.num_layers - self.num_dense_layers) * self.layer_parameters
        layers += self.num_dense_layers * self.dense_layer_parameters
        return layers + self.embedding_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that a token meets: those of its experts, and all others."""
        idle = (self.num_experts - self.experts_per_token) * self.expert_parameters
        return self.num_parameters - (self.num_layers - self.num_dense_layers) * idle

    @cached_property
    def attended_pairs(self) -> float:
        """Pairs of tokens of a sequence and head, on average over the layers; a causal mask computes half of them.

        ``s²``, and ``2sw - w²`` with a window of w.
        """
        sequence = self.sequence_length
        if self.window is None or self.window >= sequence:
            return float(sequence**2)
        windows = self.num_layers if self.num_window_layers is None else self.num_window_layers
        within = 2 * sequence * self.window - self.window**2
        return sequence**2 + (within - sequence**2) * windows / self.num_layers

    @cached_property
    def core_attention_flops(self) -> float:
        """Forward FLOPs of a sequence in a layer's scores and their sum over values: ``4 s² a d``."""
        return 2.0 * self.attended_pairs * (self.query_size + self.attention_size)

    @cached_property
    def layer_flops(self) -> float:
        """Forward FLOPs of a sequence in a layer, on average over the layers."""
        networks = self.experts_per_token * self._expert_weights + self._ffn_weights(self.shared_ffn_size)
        dense = self.num_dense_layers / self.num_layers
        weights = self.attention_weights + (1 - dense) * networks + dense * self._ffn_weights(self.dense_ffn_size)
        return 2.0 * self.sequence_length * weights + self.core_attention_flops

    @cached_property
    def forward_flops(self) -> float:
        """Forward FLOPs of a sequence."""
        head_flops = 2.0 * self.sequence_length * self.hidden_size * self.vocabulary_size
        return self.num_layers * self.layer_flops + head_flops

    @property
    def model_flops(self) -> float:
        """FLOPs of a sequence, forward and backward."""
        return 3 * self.forward_flops

    def hardware_flops(self, recomputation: str) -> float:
        """Return the FLOPs of a sequence, forward, backward and computed anew."""
        anew = {"selective": self.core_attention_flops, "full": self.layer_flops}.get(recomputation, 0.0)
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
    "head_size",
    "num_experts",
    "experts_per_token",
    "expert_hosts",
    "window",
    "kv_rank",
    "query_rank",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolutional:
    """A network for images, of which the sums are enough: it is trained data parallel.

    Attributes:
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

    def hardware_flops(self, recomputation: str) -> float:
        """Return the FLOPs of an image, as nothing is computed anew."""
        assert recomputation == "none"
        return self.model_flops

    @property
    def tokens_per_sample(self) -> int:
        """An image is one."""
        return 1


Model = Transformer | Convolutional
