"""The HTTP side: the server's group of the configuration."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from servekit.config.base import Count, FloatOrZero, Group, PositiveFloat


class ServerConfig(Group):
    host: str = Field(min_length=1, description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(description="port; 0 takes a free one")
    admin_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        description="port of metrics, plan and health; 0 takes a free one; null: all are on port"
    )
    propagation_s: FloatOrZero = Field(
        description="after SIGTERM, seconds in which /readyz says no and new requests are still "
        "served: until those who send them have heard"
    )
    drain_s: FloatOrZero = Field(
        description="after that, seconds that running requests may take to finish"
    )
    hang_s: PositiveFloat = Field(
        description="an engine is given up once its loop has not turned for so many seconds, or "
        "one step has taken as many, or ten times the slowest of its warm-up if that is more; ten "
        "times as long while it loads"
    )
    max_body_mib: PositiveFloat = Field(description="largest request body, MiB")
    read_timeout_s: PositiveFloat = Field(
        description="seconds that the head of a request, and then its body, may take to come"
    )
    max_connections: Count = Field(description="open connections to a port")
    keepalive_s: PositiveFloat = Field(
        description="a stream that has said nothing for so many seconds gets a comment, which "
        "keeps proxies from closing it"
    )
    unknown_fields: Literal["name", "refuse"] = Field(
        description="of a request: name them in the answer's servekit-ignored-fields header, or "
        "refuse it; a servekit-unknown-fields header of the request comes first"
    )
    api_keys: str | None = Field(
        description="keys that are let in: a file of lines that servekit keys makes, or env:NAME, "
        "a variable with such lines; null: nobody is asked for one"
    )
    allow_anyone: bool = Field(
        description="with api_keys: null, serve everyone who reaches host, also from elsewhere"
    )
    tls_cert: str | None = Field(
        description="a PEM file with the certificate and those above it; null: no TLS"
    )
    tls_key: str | None = Field(description="a PEM file with the key of tls_cert, not encrypted")

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.admin_port is not None and self.admin_port == self.port != 0:
            raise ValueError("admin_port is the same as port; null leaves everything on port")
        return self

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together; give both or none")
        if self.allow_anyone and self.api_keys is not None:
            raise ValueError(
                "allow_anyone is for a server without keys, and api_keys is set; api_keys: null "
                "lets everyone in"
            )
        return self
