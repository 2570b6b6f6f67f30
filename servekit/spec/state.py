"""Bytes of the states of fixed size that some layers carry instead of keys and values."""

from servekit.config.base import DTYPE_BYTES, Dtype
from servekit.config.parts import Mamba1, Mamba2, State
from servekit.spec.tensors import ceil_div


def state_elements(state: State, tensor: int = 1) -> tuple[int, int]:
    """Numbers that one layer carries of one request on one rank: convolution, recurrence.

    Groups of Mamba-2 that are fewer than ranks are replicated.
    """
    past = state.conv_kernel - 1
    match state:
        case Mamba1():
            channels = state.inner_size // tensor
            return channels * past, channels * state.state_size
        case Mamba2():
            heads, groups = state.heads // tensor, ceil_div(state.groups, tensor)
            channels = heads * state.head_dim + 2 * groups * state.state_size
            return channels * past, heads * state.head_dim * state.state_size
    keys = state.key_heads // tensor * state.key_head_dim
    values = state.value_heads // tensor * state.value_head_dim
    return (2 * keys + values) * past, values * state.key_head_dim


def layer_state_bytes(state: State, dtype: Dtype, tensor: int = 1) -> int:
    """The convolution is held in `dtype` of the model, the recurrence in its own."""
    convolution, recurrence = state_elements(state, tensor)
    return convolution * DTYPE_BYTES[dtype] + recurrence * DTYPE_BYTES[state.dtype]
