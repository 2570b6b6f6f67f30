"""How steps are computed: the engine's group of the configuration."""

from typing import Literal

from pydantic import Field

from servekit.config.base import Group


class EngineConfig(Group):
    in_flight: Literal[1, 2] = Field(
        description="steps under way at once; 2: the next is planned and its inputs are laid out "
        "while one runs, 1: after it"
    )
