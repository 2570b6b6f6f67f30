"""What a collector is told of who sends it numbers, and how long it may take to hear them."""

from opentelemetry.sdk.resources import Resource

from servekit import __version__

TIMEOUT_S = 5.0


def resource_of(deployment: str) -> Resource:
    """OTEL_RESOURCE_ATTRIBUTES may say more."""
    return Resource.create({"service.name": deployment, "service.version": __version__})
