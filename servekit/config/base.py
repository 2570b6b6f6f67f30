"""What all of the schema is made of: the closed group, numbers with limits, dtypes."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["bfloat16", "float16", "float32"]
DTYPE_BYTES: dict[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}

MOST = 10**12
"""Of any number: beyond what exists, and sums and products of a few stay far from an overflow."""

LEAST = 1e-12
"""Of a number that is more than nothing, so that one divided by it is a number too."""

MOST_LAYERS = 1024
"""Each is walked over."""

Count = Annotated[int, Field(ge=1, le=MOST)]
CountOrZero = Annotated[int, Field(ge=0, le=MOST)]
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
Gib = Annotated[float, Field(ge=LEAST, le=1e9)]
PositiveFloat = Annotated[float, Field(ge=LEAST, le=MOST)]
GibOrZero = Annotated[float, Field(ge=0, le=1e9)]
FloatOrZero = Annotated[float, Field(ge=0, le=MOST)]
Spread = Annotated[float, Field(ge=0, le=1000)]


@dataclass(frozen=True, slots=True)
class Form:
    """What the pattern beside it asks for, as it is said to people."""

    text: str


class Group(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )
