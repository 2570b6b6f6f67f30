"""What all of the schema is made of: the closed group, numbers with limits, dtypes."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["bfloat16", "float16", "float32"]
DTYPE_BYTES: dict[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
Count = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True)
class Form:
    """What the pattern beside it asks for, as it is said to people."""

    text: str


class Group(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )
